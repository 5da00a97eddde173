"""Test suites for what every backend and every storage must do; their tests inherit them.

They need ``pip install pyspark_ckpt[testing]``. Import them from their modules. So that pytest
explains their failed assertions, call first::

    pytest.register_assert_rewrite("pyspark_ckpt.testing.contracts")
"""
