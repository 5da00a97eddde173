"""What every backend and every storage promises, as test suites that their tests inherit.

They need ``pip install pyspark_ckpt[testing]``. Import them from their modules, and have pytest
explain their assertions::

    pytest.register_assert_rewrite("pyspark_ckpt.testing.contracts")
"""
