"""Rows handed over as Arrow, and packed: the same results, and the same state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row

from tests.query.harness import HAND_OVER, OFTEN, SAVEPOINT_DIR, Job
from tests.query.model import Reveal, events_of, expected


class RevealFrames(Reveal):
    """The same in frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        events = (Row(v=v) for frame in rows for v in frame["v"].tolist())
        found = list(super().handleInputRows(key, events, timerValues))
        yield pd.DataFrame(found, columns=["k", "n", "state"])


def state_files(savepoint: str) -> list[str]:
    """Return the digests of a savepoint's files of state, in the order of their names."""
    files = sorted(Path(savepoint).rglob("*.parquet"))
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


@pytest.mark.parametrize(
    "method",
    ["transformWithState", pytest.param("transformWithStateInPandas", marks=pytest.mark.slow)],
)
def test_the_same_byte_for_byte(job: Job, tmp_path: Path, method: str) -> None:
    """The progress says which way a query took; a location goes on with the other one."""
    if method == "transformWithStateInPandas":
        job = job.but(method=method, processor=RevealFrames)
    job = job.using({**OFTEN, SAVEPOINT_DIR: str(tmp_path / "saved")})
    both = {
        way: job.but(location=f"loc-{way}", out=f"out-{way}").using({HAND_OVER: way})
        for way in ("arrow", "packed")
    }
    job.feed.add(events_of(0), events_of(1))
    for way, other in (("arrow", "packed"), ("packed", "arrow")):
        progress = both[way].run().lastOperatorProgress
        packed = [each["numPackedHandOvers"] for each in progress]
        assert packed == [each["numSubtasks"] if way == "packed" else 0 for each in progress]
        assert len(packed) == 1
        both[way] = both[way].using({HAND_OVER: other})
    job.feed.add(events_of(2))
    saved = []
    for each in both.values():
        with each.running() as query:
            query.processAllAvailable()
            saved.append(query.triggerSavepoint().path)
        assert each.result() == expected(job.feed.rows)
    of_arrow, of_packed = map(state_files, saved)
    assert of_arrow
    assert of_arrow == of_packed
