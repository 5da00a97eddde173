"""PySpark's parity tests of Spark Connect, over a server that the tests start themselves.

They need a process of their own, because a process has either classic sessions or Connect's.
"""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPandasParityTests = installed_module(
    "test_parity_pandas_transform_with_state"
).TransformWithStateInPandasParityTests
TransformWithStateInPandasStateVariableParityTests = installed_module(
    "test_parity_pandas_transform_with_state_state_variable"
).TransformWithStateInPandasStateVariableParityTests
TransformWithStateInPySparkParityTests = installed_module(
    "test_parity_transform_with_state"
).TransformWithStateInPySparkParityTests
TransformWithStateInPySparkStateVariableParityTests = installed_module(
    "test_parity_transform_with_state_state_variable"
).TransformWithStateInPySparkStateVariableParityTests
