"""Typed tables of whole queries are what the processor saw, in every form and after a rescale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from tests.query.harness import BACKEND, BACKENDS, INLINE, Job
from tests.query.model import Event, events_of, states_after
from tests.query.session_conf import session_conf

EVENTS = [events_of(0, rows=60), events_of(1), [("k1", 3), ("new", 4)]]
NAMES = {"count": [], "recent": ["position"], "tally": ["bucket"]}


def check(path: str, events: list[Event]) -> None:
    """Compare single keys and whole tables of a snapshot with the model of the processor."""
    model = states_after(events)
    with ckpt.location(path).state() as snapshot:
        for place, (name, parts) in enumerate(NAMES.items()):
            view = snapshot.state("op", name)
            rows: dict[Any, list[dict[str, Any]]] = {}
            for row in view.to_arrow().read_all().to_pylist():
                rows.setdefault(row.pop("k"), []).append(row)
            wanted = {key: states[place] for key, states in model.items() if states[place]}
            assert {key: in_order(found, parts) for key, found in rows.items()} == {
                key: in_order([value] if isinstance(value, dict) else value, parts)
                for key, value in wanted.items()
            }
            for key in [*model, "nobody"]:
                found = view.get(key)
                value = model.get(key, (None, None, None))[place]
                if isinstance(found, list):
                    found, value = in_order(found, parts), in_order(value, parts)
                assert found == value


def in_order(rows: list[dict[str, Any]], parts: list[str]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [row[part] for part in parts])


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_form_of_a_snapshot(job: Job, tmp_path: Path, backend: str) -> None:
    """Checkpoints, canonical and native savepoints, and those of a fork with other subtasks."""
    job = job.using({BACKEND: backend, INLINE: "100b"})
    job.feed.add(*EVENTS[:2])
    events = [*EVENTS[0], *EVENTS[1]]
    directory = str(tmp_path / "savepoints")
    with job.running() as query:
        query.processAllAvailable()
        native = query.triggerSavepoint(directory, format="NATIVE").path
        for path in (
            query.triggerCheckpoint().path,
            query.triggerSavepoint(directory).path,
            native,
            str(job.location_path),
        ):
            check(path, events)
    other = next(each for each in BACKENDS if each != backend)
    fork = job.but(location="fork", out="fork-out").using({BACKEND: other})
    with session_conf(job.spark, {"spark.sql.shuffle.partitions": "3"}):
        with fork.running(restore=native) as query:
            query.processAllAvailable()
            check(query.triggerSavepoint(directory, format="NATIVE").path, events)
            job.feed.add(EVENTS[2])
            query.processAllAvailable()
            check(query.triggerCheckpoint().path, [*events, *EVENTS[2]])
            check(query.triggerSavepoint(directory).path, [*events, *EVENTS[2]])
