"""The harness in place of TwsTester; the fuzz tests compare it with a query of this library."""

from __future__ import annotations

from tests.conformance.installed_tests import installed_module

_tests = installed_module("test_tws_tester")
TwsTesterTests = _tests.TwsTesterTests
TwsTesterFuzzTests = _tests.TwsTesterFuzzTests
