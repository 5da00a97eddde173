"""PySpark's parity tests of ``transformWithState``, over Spark Connect."""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPySparkParityTests = installed_module(
    "test_parity_transform_with_state"
).TransformWithStateInPySparkParityTests
