"""What the metrics say of a run before anything has happened, and what the alerts need."""

from __future__ import annotations

import re

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.records import AbortedCheckpoint
from pyspark_ckpt.metrics.declared import METRICS
from pyspark_ckpt.metrics.values import MeasuredQuery, QueryMetrics
from tools import write_metrics


def metrics() -> QueryMetrics:
    """Return the metrics of a run that has just begun."""
    query = MeasuredQuery("q", "orders", "r", ("0.1.0", "4.3.0"))
    return QueryMetrics(query, lambda _: [], lambda _: None, lambda: False)


def by_reason(run: QueryMetrics) -> dict[str, float]:
    return {
        each.labels[0]: each.value for each in run.points() if each.name == "checkpoints_failed"
    }


def test_each_reason_of_a_failure_is_there_before_the_first_failure() -> None:
    run = metrics()
    assert by_reason(run) == {reason.value: 0 for reason in AbortReason}
    run.onCheckpointAborted(
        AbortedCheckpoint(
            kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, epoch=2, triggered_at_ms=3,
            duration_ms=4, reason=AbortReason.EXPIRED, message="slow",
        )
    )  # fmt: skip
    assert by_reason(run) == {r.value: int(r is AbortReason.EXPIRED) for r in AbortReason}


def test_a_run_says_when_it_began() -> None:
    before_ms = now_ms()
    found = {each.name: each.value for each in metrics().points()}
    assert before_ms <= found["started_timestamp"] * 1000 <= now_ms()
    assert "last_checkpoint_timestamp" not in found


def test_the_alerts_name_metrics_that_there_are() -> None:
    page = (write_metrics.DOCS / "metrics.md").read_text(encoding="utf-8")
    alerts = page.partition("## Alerts")[2].partition("## Logs")[0]
    named = {*re.findall(r"pyspark_ckpt_[a-z_]+", alerts)}
    assert "pyspark_ckpt_started_timestamp_seconds" in named
    assert named <= {metric.prometheus_name for metric in METRICS.values()}
