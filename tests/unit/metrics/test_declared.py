"""The list of metrics: names that reporters accept, and the page that is made from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ckpt.formats.counters import COUNTERS
from pyspark_ckpt.metrics.declared import GROUPS, METRICS, QUERY_LABELS, ROCKSDB_PROPERTIES
from pyspark_ckpt.metrics.values import EpochValues, point
from state_backends import open_backend
from state_backends.rocksdb import FIGURES
from tools import write_metrics


@pytest.mark.parametrize("page", write_metrics.PAGES, ids=lambda path: path.stem)
def test_a_page_is_made_from_its_list(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == write_metrics.page(page), "run: make pages"


def test_names_and_labels_are_ones_of_prometheus() -> None:
    names = [metric.prometheus_name for metrics in GROUPS.values() for metric in metrics]
    assert len({*names}) == len(names)
    assert len({counter.progress for counter in COUNTERS.values()}) == len(COUNTERS)
    for metric in METRICS.values():
        assert re.fullmatch(r"pyspark_ckpt_[a-z0-9_]+", metric.prometheus_name)
        assert not {*metric.labels} & {*QUERY_LABELS}
        assert all(re.fullmatch(r"[a-z_]+", label) for label in metric.labels)


def test_a_value_needs_the_declared_labels() -> None:
    with pytest.raises(AssertionError, match="has the labels"):
        point("late_rows", 1)


def test_rocksdb_has_all_reported_figures(tmp_path: Path) -> None:
    assert set(ROCKSDB_PROPERTIES) == set(FIGURES)
    with open_backend("rocksdb", tmp_path / "state", create=True) as backend:
        backend.load((), "empty")
        assert backend.figures()["block-cache-capacity"] > 0
        for name in FIGURES:
            assert backend._database.property_int_value(f"rocksdb.{name}") is not None, name


def test_epochs_are_counted_once() -> None:
    def report(epoch: int, rows: int, late: int) -> dict[str, object]:
        return {
            "batchId": epoch,
            "timestamp": "2026-01-01T00:00:10.000Z",
            "durationMs": {"triggerExecution": 1500, "addBatch": 1000},
            "sources": [{"numInputRows": rows}, {"numInputRows": -1}],
            "stateOperators": [{"numRowsDroppedByWatermark": late}],
            "eventTime": {"watermark": "2026-01-01T00:00:04.000Z"},
        }

    values = EpochValues({0: "op"})
    values.add([report(0, 5, 1), report(1, 7, 2)])
    values.add([report(1, 7, 2)])
    found = {(each.name, each.labels): each.value for each in values.points()}
    assert found["epochs", ()] == 2
    assert found["input_rows", ()] == 12
    assert found["late_rows", ("op",)] == 3
    assert found["epoch_duration", ()] == 1.5
    assert found["epoch_phase_duration", ("addBatch",)] == 1
    assert found["watermark_lag", ()] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reporter", "module"),
    [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry.sdk")],
)
def test_a_reporter_without_its_library_is_refused_with_its_extra(
    reporter: str, module: str
) -> None:
    program = (
        "import sys\n"
        f"sys.modules['{module}'] = None\n"
        "from pyspark_ckpt.errors import ConfigurationError\n"
        "from pyspark_ckpt.metrics.reporters import check_reporters\n"
        "from pyspark_ckpt.settings import read_settings\n"
        "try:\n"
        f"    conf = {{'spark.ckpt.metrics.reporters': '{reporter}'}}\n"
        "    check_reporters(read_settings(conf, {}))\n"
        "except ConfigurationError as exc:\n"
        "    print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert f"install pyspark_ckpt[{reporter}]" in done.stdout
