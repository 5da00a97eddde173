"""The difference of two snapshots is that of two plain models, whatever files they share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.stored import comparison
from tests.query.harness import BACKEND, BACKENDS, INLINE, INTERVAL, RETAINED, Job
from tests.query.model import Event, events_of, states_after
from tests.query.stored import handles_of

pytestmark = pytest.mark.slow

MATERIALIZE = "spark.ckpt.internal.state.changelog.materialize"
EPOCHS = [events_of(0, rows=60), events_of(1), [("k1", 3), ("new", 4)], events_of(3, rows=30)]
NAMES = {"count": [], "recent": ["position"], "tally": ["bucket"]}


def entries(events: list[Event], name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of a state after some events, by key and map key or position."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key, states in states_after(events).items():
        value = states[list(NAMES).index(name)]
        for row in [value] if isinstance(value, dict) else value or []:
            place = (key, *(row[part] for part in NAMES[name]))
            found[place] = {part: each for part, each in row.items() if part not in NAMES[name]}
    return found


def check(difference: ckpt.results.StateDifference, old: list[Event], new: list[Event]) -> None:
    counts = difference.counts.set_index("state")
    for name, parts in NAMES.items():
        before, after = entries(old, name), entries(new, name)
        expected = {
            "added": after.keys() - before.keys(),
            "removed": before.keys() - after.keys(),
            "changed": {p for p in before.keys() & after.keys() if before[p] != after[p]},
        }
        rows = difference.to_arrow("op", name).to_pylist()
        found: dict[str, set[Any]] = {"added": set(), "removed": set(), "changed": set()}
        for row in rows:
            place = (row["k"], *(row[part] for part in parts))
            found[row["change"]].add(place)
            for prefix, side in (("old_", before), ("new_", after)):
                values = {c.removeprefix(prefix): v for c, v in row.items() if c.startswith(prefix)}
                assert values == side.get(place, dict.fromkeys(values))
        assert found == expected
        assert len(rows) == sum(map(len, expected.values()))
        assert {what: counts.loc[name, what] for what in expected} == {
            what: len(places) for what, places in expected.items()
        }


def until(epoch: int) -> list[Event]:
    return [event for events in EPOCHS[: epoch + 1] for event in events]


def checkpoints_of(job: Job, savepoints: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the checkpoints, and canonical and native savepoints, of each of the epochs."""
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    with job.running() as query:
        for events in EPOCHS:
            job.feed.add(events)
            query.processAllAvailable()
            found[0].append(query.triggerCheckpoint().path)
            found[1].append(query.triggerSavepoint(str(savepoints)).path)
            found[2].append(query.triggerSavepoint(str(savepoints), format="NATIVE").path)
    return found


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rebased", [False, True])
def test_two_versions_of_a_query(
    job: Job, tmp_path: Path, backend: str, rebased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints and savepoints of two epochs, with one base snapshot or with two."""
    options = {BACKEND: backend, INLINE: "100b", INTERVAL: "1h", RETAINED: "9"}
    if rebased:
        options |= {f"{MATERIALIZE}.max-segments": "1", f"{MATERIALIZE}.min-size": "1b"}
    chk, canonical, native = checkpoints_of(job.using(options), tmp_path / "savepoints")
    for old, new in ((0, 3), (1, 2), (3, 1)):
        check(ckpt.location(chk[old]).diff(chk[new]), until(old), until(new))
        check(ckpt.location(canonical[old]).diff(native[new]), until(old), until(new))
    for same in (chk, canonical, native):
        assert ckpt.location(chk[2]).diff(same[2]).is_equal
    if not rebased:
        monkeypatch.setattr(comparison, "_compared", None)  # nothing is read as a whole
        counts = ckpt.location(chk[1]).diff(chk[1]).counts
        assert counts[["added", "removed", "changed"]].to_numpy().sum() == 0


def of_seven_key_groups(job: Job) -> DataFrame:
    return job.process(ckpt.key_by(job.stream(), *job.keys, max_parallelism=7))


@pytest.mark.soak
def test_a_fork_at_another_parallelism(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """State that moved to other subtasks is equal; what the fork changed is found."""
    job.feed.add(EPOCHS[0])
    with job.running() as query:
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(tmp_path / "savepoints")).path
    before = job.spark.conf.get("spark.sql.shuffle.partitions")
    job.spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        fork = job.but(location="fork", out="fork-out", plan=of_seven_key_groups)
        with fork.running(restore=savepoint) as query:
            query.processAllAvailable()
            moved = query.triggerCheckpoint().path
            assert main(["diff", savepoint, moved]) == 0
            assert ckpt.location(savepoint).diff(moved).is_equal
            job.feed.add(EPOCHS[1], EPOCHS[2])
            query.processAllAvailable()
            changed = query.triggerCheckpoint().path
            check(ckpt.location(savepoint).diff(changed), until(0), until(2))
            check(ckpt.location(changed).diff(savepoint), until(2), until(0))
    finally:
        job.spark.conf.set("spark.sql.shuffle.partitions", before)
    capsys.readouterr()
    assert main(["diff", savepoint, changed, "--json", "--limit", "1"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert not shown["is_equal"]
    assert [each["state"] for each in shown["samples"]] == ["count", "recent", "tally"]
    assert main(["diff", savepoint, changed]) == 1
    assert "new_total" in capsys.readouterr().out
    assert main(["diff", savepoint, str(tmp_path / "nowhere")]) == 2
    with pytest.raises(ckpt.errors.StateUseError, match="have no state 'x' of an operator 'op'"):
        ckpt.location(savepoint).diff(changed).to_pandas("op", "x")


class Newest(StatefulProcessor):
    """Keeps the newest value of a key; a negative one removes it."""

    def init(self, handle: Any) -> None:
        self.newest = handle.getValueState("newest", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.v < 0:
                self.newest.clear()
            else:
                self.newest.update((row.v,))
        return iter(())

    def close(self) -> None:
        pass


def newest_of(events: list[Event]) -> dict[str, int]:
    found = dict(events)
    return {key: value for key, value in found.items() if value >= 0}


def checkpoint_with_new_bases(job: Job, query: ckpt.CheckpointedQuery, events: list[Event]) -> str:
    """Process some events, and more of a few keys until all base snapshots are younger."""
    first = None
    for number in range(100):
        job.feed.add(events if number == 0 else [(f"few {n}", number) for n in range(8)])
        query.processAllAvailable()
        checkpoint = query.triggerCheckpoint()
        first = checkpoint.epoch if first is None else first
        bases = [handle.base for handle in handles_of(checkpoint.path)]
        if all(base is not None and base.epoch >= first for base in bases):
            return checkpoint.path
    raise AssertionError("no new base snapshots")


@pytest.mark.soak_variants
@pytest.mark.parametrize("removed", [False, True])
def test_base_snapshots_with_files_in_common(
    job: Job, tmp_path: Path, removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the files that one of them has are read, unless they have deletions."""
    rng = random.Random(3)
    keys = [f"{rng.getrandbits(200):x}" for _ in range(3000)]
    changes = [(key, n) for n, key in enumerate(rng.sample(keys, 40))] + [("new", 1)]
    epochs = [[(key, 7) for key in keys], changes, [(keys[5], 99), ("newer", 2)]]
    if removed:
        epochs[1] += [(key, -1) for key in keys[:3]]
    options = {BACKEND: "rocksdb", INLINE: "0b", INTERVAL: "1h", RETAINED: "9"}
    options |= {f"{MATERIALIZE}.max-segments": "1", f"{MATERIALIZE}.min-size": "1b"}
    job = job.but(processor=Newest, output="k string").using(options)
    paths, seen = [], []
    with job.running() as query:
        for events in epochs:
            paths.append(checkpoint_with_new_bases(job, query, events))
            seen.append(newest_of(job.feed.rows))
    if not removed:
        monkeypatch.setattr(comparison, "_compared", None)  # nothing is read as a whole
    for old, new in ((0, 1), (0, 2), (1, 2), (2, 0)):
        rows = ckpt.location(paths[old]).diff(paths[new]).to_arrow("op", "newest").to_pylist()
        before, after = seen[old], seen[new]
        different = {
            key: (before.get(key), after.get(key))
            for key in before.keys() | after.keys()
            if before.get(key) != after.get(key)
        }
        assert {row["k"]: (row["old_v"], row["new_v"]) for row in rows} == different
