"""The kinds of state: value, list and map, with a time to live, from an initial state."""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPandasStateVariableTests = installed_module(
    "test_pandas_transform_with_state_state_variable"
).TransformWithStateInPandasStateVariableTests
TransformWithStateInPySparkStateVariableTests = installed_module(
    "test_transform_with_state_state_variable"
).TransformWithStateInPySparkStateVariableTests
