"""The programs of peers, and their arguments."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from benchmarks.runs.case import Program

FLINK = ".venv-flink"
BYTEWAX = ".venv-bytewax"
_STATE_BACKENDS = ("rocksdb", "hashmap")
_MINI_BATCHES = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
}
"""Rows are gathered before state is touched, which is nearer to an epoch; off by default."""

Final = Callable[[pd.DataFrame], pd.DataFrame]


def counting_programs(final: Final) -> list[Program]:
    """Return all programs that do a running count and sum per key."""
    return [
        *(
            Program(
                f"PyFlink thread mode, {backend}",
                FLINK,
                "flink_processor.py",
                {"processor": "count", "backend": backend},
                final,
            )
            for backend in _STATE_BACKENDS
        ),
        *(
            Program(
                f"Flink SQL, {backend}",
                FLINK,
                "flink_sql.py",
                {"query": "count", "backend": backend},
                final,
            )
            for backend in _STATE_BACKENDS
        ),
        Program(
            "Flink SQL in mini-batches, rocksdb",
            FLINK,
            "flink_sql.py",
            {"query": "count", "backend": "rocksdb", "settings": _MINI_BATCHES},
            final,
        ),
        Program("Bytewax", BYTEWAX, "bytewax_count.py", {}, final),
    ]


def session_programs(gap_ms: int, out_of_order_ms: int) -> list[Program]:
    """Return all programs that find sessions in event time."""
    times = {"gap_ms": gap_ms, "out_of_order_ms": out_of_order_ms}
    return [
        *(
            Program(
                f"PyFlink thread mode, {backend}",
                FLINK,
                "flink_processor.py",
                {"processor": "sessions", "backend": backend, **times},
                _without_last_row,
            )
            for backend in _STATE_BACKENDS
        ),
        *(
            Program(
                f"Flink SQL, {backend}",
                FLINK,
                "flink_sql.py",
                {"query": "sessions", "backend": backend, **times},
                _without_last_row,
            )
            for backend in _STATE_BACKENDS
        ),
        Program("Bytewax", BYTEWAX, "bytewax_sessions.py", times, _without_last_row),
    ]


def _without_last_row(output: pd.DataFrame) -> pd.DataFrame:
    # They end all sessions with their input, also the session of the row that ends the others.
    return output[output["key"] >= 0]
