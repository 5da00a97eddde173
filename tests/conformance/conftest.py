"""Runs PySpark's own tests over this library, by ``enable``; see ``make prove WHAT=conformance``.

A listed test that passes fails the run, as does one that is not listed and fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyspark
import pytest
from pyspark.sql import streaming as spark_streaming

import pyspark_ckpt as ckpt
from pyspark_ckpt.testing import ProcessorHarness
from tests.conformance.installed_tests import open_archive
from tests.conformance.not_applying import entry_of

open_archive()
_patch = pytest.MonkeyPatch()
# Before the tests are imported, which take its name with them.
if hasattr(spark_streaming, "TwsTester"):
    _patch.setattr(spark_streaming, "TwsTester", ProcessorHarness)


def pytest_unconfigure() -> None:
    _patch.undo()


@pytest.fixture(autouse=True)
def _on_this_library(request: pytest.FixtureRequest) -> Iterator[None]:
    spark = request.cls.spark
    groups = type(spark.range(0).groupBy())
    with pytest.MonkeyPatch.context() as patch:
        for name in ("transformWithState", "transformWithStateInPandas"):
            if hasattr(groups, name):  # PySpark 4.0 has no operator of rows
                patch.setattr(groups, name, _not_on_this_library)
        ckpt.enable(spark)
        yield
        ckpt.disable(spark)


def _not_on_this_library(*_: Any, **__: Any) -> None:
    pytest.fail("PySpark's own operator was called")


def pytest_report_header() -> str:
    return f"conformance: the tests of PySpark {pyspark.__version__}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    assert isinstance(item.parent, pytest.Class)
    entry = entry_of(item.name, item.parent.name)
    if entry is None or call.when != "call" or report.skipped:
        return
    if report.passed and not entry.always:
        return
    if report.passed:
        report.outcome = "failed"
        report.longrepr = f"{item.name} passes: take it off the list of those that do not apply"
    elif re.search(entry.failure, str(report.longrepr)):
        report.outcome = "skipped"
        report.wasxfail = entry.reason


def pytest_terminal_summary(terminalreporter: Any) -> None:
    passed, listed = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "xfailed"))
    terminalreporter.write_line(
        f"The tests of PySpark {pyspark.__version__}: {passed} pass, {listed} do not apply."
    )
