"""PySpark's parity tests of state variables with pandas frames, over Spark Connect."""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPandasStateVariableParityTests = installed_module(
    "test_parity_pandas_transform_with_state_state_variable"
).TransformWithStateInPandasStateVariableParityTests
