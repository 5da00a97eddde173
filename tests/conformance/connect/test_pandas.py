"""PySpark's parity tests of ``transformWithStateInPandas``, over Spark Connect.

The tests of this directory need a process of their own, because a process has either classic
sessions or Connect's. With PySpark 4.1 each of these modules needs one: closing a session there
waits for retries to the server of the class of tests before, which has ended.
"""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPandasParityTests = installed_module(
    "test_parity_pandas_transform_with_state"
).TransformWithStateInPandasParityTests
