"""PySpark's parity tests of ``transformWithStateInPandas``, over Spark Connect."""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

TransformWithStateInPandasParityTests = installed_module(
    "test_parity_pandas_transform_with_state"
).TransformWithStateInPandasParityTests
