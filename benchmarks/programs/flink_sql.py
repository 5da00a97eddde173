"""Flink SQL, which runs in Java: no Python in the job."""

from __future__ import annotations

from flink_job import Request, run
from pyflink.datastream import DataStream
from pyflink.table import ChangelogMode, Schema, StreamTableEnvironment

_COUNT = "SELECT k, COUNT(*) AS n, SUM(v) AS total FROM input GROUP BY k"


def _counts(tables: StreamTableEnvironment) -> DataStream:
    # An update of a key replaces its last row, which needs no retraction.
    schema = (
        Schema.new_builder()
        .column("k", "BIGINT NOT NULL")
        .column("n", "BIGINT NOT NULL")
        .column("total", "BIGINT")
        .primary_key("k")
        .build()
    )
    query = tables.sql_query(_COUNT)
    return tables.to_changelog_stream(query, schema, ChangelogMode.upsert())


def _sessions(tables: StreamTableEnvironment, gap_ms: int) -> DataStream:
    query = tables.sql_query(
        "SELECT k, MIN(ms), MAX(ms), COUNT(*) FROM SESSION(TABLE input PARTITION BY k, "
        f"DESCRIPTOR(ts), INTERVAL '{gap_ms // 60_000}' MINUTE) "
        "GROUP BY k, window_start, window_end"
    )
    return tables.to_data_stream(query)


def main() -> None:
    """Run what the command line asks for."""
    request = Request.read()
    if request.arguments["query"] == "count":
        columns = "k BIGINT NOT NULL, v BIGINT"
        run(request, columns, _counts, ["key", "n", "total"], in_order=False)
        return
    gap_ms, late_ms = request.arguments["gap_ms"], request.arguments["out_of_order_ms"]
    columns = (
        "k BIGINT, ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3), "
        f"WATERMARK FOR ts AS ts - INTERVAL '{late_ms // 60_000}' MINUTE"
    )
    names = ["key", "start_ms", "last_ms", "n"]
    run(request, columns, lambda tables: _sessions(tables, gap_ms), names, in_order=True)


if __name__ == "__main__":
    main()
