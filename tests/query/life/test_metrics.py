"""Metrics of running queries, scraped and received by real HTTP, compared with the history."""

from __future__ import annotations

import json
import logging
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pyspark_ckpt as ckpt
from pyspark_ckpt.log_fields import JsonLogFormatter, library_logger
from pyspark_ckpt.metrics.declared import METRICS
from tests.query.harness import BACKEND, INTERVAL, Feed, Job
from tests.query.model import Count
from tests.servers.otlp import otlp_receiver

REPORTERS = "spark.ckpt.metrics.reporters"
PORT = "spark.ckpt.metrics.reporter.prometheus.port"
SELDOM = {INTERVAL: "1h"}
PROMETHEUS = {REPORTERS: "prometheus", PORT: "0", **SELDOM}

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scraped(url: str) -> Values:
    """Return the values of a scrape by name and sorted labels."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float:
    """Return the only value of a metric that has these labels, among others."""
    (found,) = [
        each
        for (of, have), each in values.items()
        if of == name and set(labels.items()) <= set(have)
    ]
    return found


def counting(job: Job) -> Job:
    return job.but(processor=Count, output="k string, n long")


def test_a_scrape_has_what_the_history_has(job: Job) -> None:
    job = counting(job).using(PROMETHEUS)
    job.feed.add([("a", 1), ("b", 2), ("c", 3)])
    writer = job.writer().queryName("counts")
    query = writer.start()
    try:
        url = query.metricsReporters["prometheus"]
        assert url.startswith("http://127.0.0.1:")
        query.processAllAvailable()
        query.triggerCheckpoint()
        job.feed.add([("a", 4), ("d", 5)])
        query.processAllAvailable()
        checkpoint = query.triggerCheckpoint()
        values = scraped(url)
        (*_, entry) = query.checkpoints().where("status = 'completed'").collect()
        (progress,) = query.lastOperatorProgress
        labels = {label for name, have in values for label, _ in have if name.endswith("_info")}
        assert {"query", "query_id", "run_id"} <= labels
        assert value(values, "pyspark_ckpt_info", query="counts", query_id=query.id) == 1
        assert value(values, "pyspark_ckpt_epochs_total") == 2
        assert value(values, "pyspark_ckpt_epoch") == 1
        assert value(values, "pyspark_ckpt_input_rows_total") == 5
        assert value(values, "pyspark_ckpt_checkpoints_completed_total") == 2
        assert value(values, "pyspark_ckpt_checkpoints_in_progress") == 0
        last = "pyspark_ckpt_last_checkpoint"
        assert value(values, f"{last}_id") == entry.checkpoint_id == checkpoint.checkpoint_id
        assert value(values, f"{last}_epoch") == entry.epoch
        assert value(values, f"{last}_duration_seconds") == entry.duration_ms / 1000
        assert value(values, f"{last}_size_bytes") == entry.size_bytes
        assert value(values, f"{last}_new_bytes") == entry.new_bytes
        assert value(values, f"{last}_files") == entry.files
        assert value(values, f"{last}_info", path=entry.path) == 1
        for phase, duration_ms in (
            entry.phases_ms.asDict().items()
            if hasattr(entry.phases_ms, "asDict")
            else entry.phases_ms.items()
        ):
            seconds = value(values, f"{last}_phase_duration_seconds", phase=phase)
            assert seconds == duration_ms / 1000
        of = {"operator": "op", "subtasks": "sum"}
        assert value(values, "pyspark_ckpt_operator_input_rows", **of) == progress["numInputRows"]
        assert value(values, "pyspark_ckpt_operator_state_writes", **of) == 2
        assert value(values, "pyspark_ckpt_state_entries", state="count", **of) == 4
        (state,) = progress["states"]
        assert value(values, "pyspark_ckpt_state_size_bytes", **of) == state["sizeBytes"]
        barrier = value(
            values, "pyspark_ckpt_operator_barrier_duration_seconds", **of | {"subtasks": "max"}
        )
        assert barrier == progress["barrierTimeMs"] / 1000
        stored = sum(each["baseBytes"] + each["changelogBytes"] for each in progress["subtasks"])
        assert value(values, "pyspark_ckpt_operator_stored_bytes", **of) == stored
        cache = "pyspark_ckpt_rocksdb_block_cache_capacity_bytes"
        smallest = value(values, cache, operator="op", subtasks="min")
        assert 0 < smallest <= value(values, cache, operator="op", subtasks="max")
        assert not [name for name, _ in values if "restored" in name], "it is a fresh query"
        declared = {metric.prometheus_name for metric in METRICS.values()}
        assert {name for name, _ in values} <= declared
    finally:
        query.stop()
    with pytest.raises(urllib.error.URLError):
        scraped(url)


@pytest.mark.slow
def test_queries_of_a_session_share_an_endpoint(job: Job) -> None:
    job = counting(job).using(PROMETHEUS)
    job.feed.add([("a", 1)])
    other = job.but(location="other", out="other_out", feed=Feed(job.base / "in2"))
    other.feed.add([("x", 1)], [("y", 1), ("x", 2)])
    with job.running() as first, other.using({BACKEND: "heap"}).running() as second:
        url = first.metricsReporters["prometheus"]
        assert second.metricsReporters["prometheus"] == url
        for query in (first, second):
            query.processAllAvailable()
            query.triggerCheckpoint()
        values = scraped(url)
        assert value(values, "pyspark_ckpt_input_rows_total", query_id=first.id) == 1
        assert value(values, "pyspark_ckpt_input_rows_total", query_id=second.id) == 3
        with_rocksdb = {dict(have)["query_id"] for name, have in values if "rocksdb" in name}
        assert with_rocksdb == {first.id}
        second.stop()
        values = scraped(url)
        assert {dict(have)["query_id"] for _, have in values} == {first.id}
    with job.running() as again:
        again.processAllAvailable()
        values = scraped(again.metricsReporters["prometheus"])
        assert value(values, "pyspark_ckpt_restored_timestamp_seconds") > 0


def test_a_port_in_use_is_reported_and_the_query_runs(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        job = counting(job).using({**PROMETHEUS, PORT: port})
        job.feed.add([("a", 1)])
        with caplog.at_level(logging.WARNING, "pyspark_ckpt"), job.running() as query:
            query.processAllAvailable()
            assert query.triggerCheckpoint().epoch == 0
            assert query.metricsReporters["prometheus"].startswith("failed: ")
    (text,) = [each.getMessage() for each in caplog.records if "no metrics" in each.getMessage()]
    assert f"127.0.0.1:{port}" in text
    assert "reporter.prometheus.port" in text


def test_otlp_has_the_same_values_and_survives_a_receiver_that_fails(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with otlp_receiver() as receiver:
        receiver.status = 400  # which OpenTelemetry does not try again
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        job = counting(job).using({**SELDOM, REPORTERS: "opentelemetry"})
        job.feed.add([("a", 1), ("b", 2)])
        with caplog.at_level(logging.INFO, "pyspark_ckpt"), job.running() as query:
            assert query.metricsReporters == {"opentelemetry": receiver.url}
            query.processAllAvailable()
            receiver.wait_for_refusals(3)
            checkpoint = query.triggerCheckpoint()
            receiver.status = 200
            receiver.wait_for_exports(1)
        texts = [each.getMessage() for each in caplog.records]
        assert len([text for text in texts if "were not exported" in text]) == 1
        assert len([text for text in texts if "are exported again" in text]) == 1
        # the export at the end has everything
        values = receiver.values()
        assert value(values, "pyspark_ckpt.epochs", query_id=query.id) == 1
        assert value(values, "pyspark_ckpt.checkpoints_completed") >= 1
        assert value(values, "pyspark_ckpt.last_checkpoint_size") == checkpoint.size_bytes
        keys = value(values, "pyspark_ckpt.state_keys", operator="op", subtasks="sum")
        assert keys == 2
        kinds = receiver.kinds()
        assert kinds["pyspark_ckpt.epochs"] == ("sum", "1")
        assert kinds["pyspark_ckpt.last_checkpoint_size"] == ("gauge", "By")
        assert kinds["pyspark_ckpt.last_checkpoint_duration"] == ("gauge", "s")
        assert receiver.resource()["service.name"] == "pyspark_ckpt"
        assert receiver.resource()["service.instance.id"] == query.runId


def test_without_reporters_nothing_is_measured(job: Job) -> None:
    job = counting(job).using(SELDOM)
    job.feed.add([("a", 1)])
    with job.running() as query:
        query.processAllAvailable()
        assert query.metricsReporters == {}
        query.triggerCheckpoint()
        metadata = query._coordinator._runner.metadata_of(1)
        assert metadata is not None
        handles = [handle for each in metadata.operators for handle in each.handles]
        assert handles
        assert not any(handle.metrics and handle.metrics.backend for handle in handles)


def test_unknown_reporters_are_refused(job: Job) -> None:
    job.feed.add([("a", 1)])
    with pytest.raises(
        ckpt.errors.ConfigurationError, match=r"one or more of prometheus, opentelemetry"
    ):
        counting(job).using({REPORTERS: "statsd"}).start()


def test_records_of_a_checkpoint_have_its_ids(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job = counting(job).using({INTERVAL: "100ms"})
    job.feed.add([("a", 1)])
    seen = []

    class Listener(ckpt.CheckpointListener):
        def onCheckpointCompleted(self, checkpoint: ckpt.results.CompletedCheckpoint) -> None:
            library_logger("pyspark_ckpt.test").warning("listened")
            seen.append(checkpoint)

    with caplog.at_level(logging.INFO, "pyspark_ckpt"):
        with job.running() as query:
            query.addCheckpointListener(Listener())
            query.processAllAvailable()
            query.triggerCheckpoint()
            job.feed.add([("b", 1)])
            query.processAllAvailable()
            query.triggerCheckpoint()
        lines = [json.loads(JsonLogFormatter().format(each)) for each in caplog.records]
    completed = [line for line in lines if "completed" in line["message"]]
    assert completed
    assert {line["query"] for line in completed} == {query.id}
    for line in completed:
        assert f"chk-{line['checkpoint']}, epoch {line['epoch']}" in line["message"]
    listened = [line for line in lines if line["message"] == "listened"]
    ids = {(each.checkpoint_id, each.epoch) for each in seen}
    assert {(line["checkpoint"], line["epoch"]) for line in listened} == ids
    assert all(line["query"] == query.id for line in listened)
