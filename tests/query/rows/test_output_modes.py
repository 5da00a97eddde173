"""Output modes of an operator and of its query, which may differ."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from tests.query.harness import Job
from tests.query.model import OUTPUT, Reveal, events_of, expected


def operator(job: Job, mode: str, df: DataFrame | None = None) -> DataFrame:
    keyed = ckpt.key_by(job.stream() if df is None else df, "k")
    return keyed.transformWithState(Reveal(), OUTPUT, mode, "None", uid="op")


@pytest.mark.slow
def test_update_into_a_file_sink(job: Job) -> None:
    """A file sink appends only; the operator's mode is that of transformWithState examples."""
    job.feed.add(events_of(0), events_of(1))
    job.but(plan=lambda job: operator(job, "Update")).run()
    assert job.result() == expected(job.feed.rows)


def test_append_in_a_query_that_updates(job: Job) -> None:
    job.feed.add(events_of(0))
    writer = ckpt.write_stream(operator(job, "Append")).format("memory").queryName("updated")
    writer = writer.outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", str(job.location_path)).start().awaitTermination()
    assert sorted(job.spark.table("updated").collect()) == expected(job.feed.rows)


@pytest.mark.parametrize("mode", ["Append", "Update"])
@pytest.mark.parametrize("aggregated", [False, True])
def test_what_spark_refuses_is_said_without_the_plan(
    job: Job, mode: str, *, aggregated: bool
) -> None:
    job.feed.add(events_of(0))
    before = None
    if aggregated:
        before = job.stream().groupBy("k").count().selectExpr("k", "count AS v")
    writer = ckpt.write_stream(operator(job, mode, before)).format("noop").outputMode("complete")
    with pytest.raises(
        ckpt.errors.PlanError, match=r"append or update|outputMode append"
    ) as caught:
        writer.option("checkpointLocation", str(job.location_path)).start()
    print(caught.value)
    assert "__ckpt_" not in str(caught.value)
    assert "applyInPandas" not in str(caught.value)
    assert job.spark.streams.active == []
