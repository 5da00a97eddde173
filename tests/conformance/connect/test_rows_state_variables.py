"""PySpark's parity tests of state variables with rows, over Spark Connect."""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPySparkStateVariableParityTests = installed_module(
    "test_parity_transform_with_state_state_variable"
).TransformWithStateInPySparkStateVariableParityTests
