"""The operator: output, restarts, timers, initial state, schema evolution."""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPandasTests = installed_module(
    "test_pandas_transform_with_state"
).TransformWithStateInPandasTests
TransformWithStateInPySparkTests = installed_module(
    "test_transform_with_state"
).TransformWithStateInPySparkTests
