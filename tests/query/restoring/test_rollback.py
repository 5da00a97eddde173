"""A stopped query's location is rolled back to a retained checkpoint, and forward again."""

from __future__ import annotations

import shutil
import threading
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.file_commands import list_stored
from pyspark_ckpt.history.run_log import (
    RUNS,
    RunStarted,
    decode_run_record,
    encode_run_record,
)
from pyspark_ckpt.restarting import rollback as rolling_back
from pyspark_ckpt.restarting import stopped
from pyspark_ckpt.sessions.classic import ClassicSession
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.open import find_store
from tests.query.harness import (
    CHECKPOINT_DIR,
    INLINE,
    RETAINED,
    Job,
    completed,
    digests,
    flip_bit,
    refused,
)
from tests.query.leftovers import metadata_json, paths_in
from tests.query.model import events_of, expected, expected_after


@pytest.mark.slow
def test_rollback(job: Job) -> None:
    """A running query is refused. Afterwards state and offsets are the checkpoint's."""
    job = job.using({INLINE: "0b", RETAINED: 10})
    for epoch in range(3):
        job.feed.add(events_of(epoch))
        query = job.run()
    ids = sorted(row.checkpoint_id for row in completed(query) if row.epoch == 1)
    to, location = f"chk-{ids[0]}", str(job.location_path)
    highest = max(row.checkpoint_id for row in completed(query))
    with job.running() as query:
        with refused(ckpt.errors.RestoreError, query.id, "stop", unchanged=job.base / "out"):
            ckpt.location(location).rollback(to)
    names = [place.parent.name for place in job.checkpoint_path.glob("chk-*/_metadata")]
    retained = f"({', '.join(sorted(names, key=lambda name: int(name[4:])))})"
    for error, other in (
        (ckpt.errors.CheckpointNotFoundError, "chk-99"),
        (ckpt.errors.RestoreError, "newest"),
    ):
        with refused(error, other, retained, unchanged=job.location_path / "offsets"):
            ckpt.location(location).rollback(other)
    before = digests(job.location_path)
    made = ckpt.location(location).rollback(to)
    kept = Path(made.kept)
    undo = f"undo it with: pyspark-ckpt rollback {location} {kept.name}"
    for too_early in (
        lambda: ckpt.location(location).state(),
        lambda: ckpt.location(location).rollback(f"chk-{ids[0] + 1}"),
    ):
        with refused(ckpt.errors.CheckpointNotFoundError, undo, unchanged=kept):
            too_early()
    listed = list_stored(Namespace(path=location)).text
    assert undo in listed
    moved = {str(kept / Path(k).relative_to(job.location_path)): v for k, v in before.items()}
    claims = {str(path) for path in kept.glob("_swap-*")}  # and a term of a driver, below
    found = {k: v for k, v in digests(kept).items() if k not in claims}
    (term,) = found.keys() - moved.keys()
    assert Path(term).parent.name == "drivers"
    assert {k: v for k, v in found.items() if k != term} == moved
    with refused(ckpt.errors.RestoreError, "out", "new path", unchanged=job.base):
        job.run()
    again = job.but(out="out2")
    query = again.run()
    assert again.result() == expected_after(job.feed.rows, 40)
    assert job.spark.read.load(str(job.base / "out2")).count() == 20
    assert query.lastRestore is not None
    assert min(row.checkpoint_id for row in completed(query)) > highest
    (job.location_path / "_rollback").write_text("{}")
    with refused(ckpt.errors.RestoreError, "interrupted", "rollback", unchanged=job.base):
        again.run()
    (job.location_path / "_rollback").unlink()
    undone = ckpt.location(location).rollback(kept.name)
    assert Path(undone.kept) != kept
    assert not kept.exists()
    other = ckpt.location(location).rollback(to)
    listed = list_stored(Namespace(path=location)).text
    both = sorted([Path(undone.kept).name, Path(other.kept).name])
    assert f"is in {', '.join(both)}: start the query" in listed  # only the user knows which
    assert listed.endswith(f"pyspark-ckpt rollback {location} ONE_OF_THEM\n")
    ckpt.location(location).rollback(Path(other.kept).name)
    job.feed.add(events_of(3))
    job.run()
    assert job.result() == expected(job.feed.rows)
    flip_bit(job.checkpoint_path / to / "_metadata")
    with refused(ckpt.errors.CorruptFileError, to, unchanged=job.location_path / "offsets"):
        ckpt.location(location).rollback(to)


@pytest.mark.slow
def test_a_rollback_that_fails_leaves_nothing_behind(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is outside; the next rollback also removes what a killed one left."""
    outside = job.base / "outside"
    job = job.using({INLINE: "0b", RETAINED: 10, CHECKPOINT_DIR: outside})
    for epoch in range(2):
        job.feed.add(events_of(epoch))
        query = job.run()
    checkpoints = outside / str(query.id)
    of_epoch = {row.epoch: Path(row.path).name for row in completed(query)}
    newest = metadata_json(checkpoints / of_epoch[1])
    first = paths_in(metadata_json(checkpoints / of_epoch[0])["operators"])
    damaged = checkpoints / min(paths_in(newest["operators"]) - first)
    flip_bit(damaged)
    before = digests(job.base)
    with pytest.raises(ckpt.errors.CorruptFileError, match=damaged.name):
        ckpt.location(str(job.location_path)).rollback(of_epoch[1], str(outside))
    (term,) = digests(job.base).keys() - before.keys()  # of a driver: others are fenced
    assert Path(term).parent.name == "drivers"
    assert before.items() <= digests(job.base).items()

    with monkeypatch.context() as patch:  # as if it were killed: nothing is cleared
        patch.setattr(rolling_back, "_remove_staged", lambda *_: None)
        with pytest.raises(ckpt.errors.CorruptFileError, match=damaged.name):
            ckpt.location(str(job.location_path)).rollback(of_epoch[1], str(outside))
    assert len(list(outside.iterdir())) == 2
    assert len(list(job.location_path.glob("_rolling_back-*"))) == 1
    ckpt.location(str(job.location_path)).rollback(of_epoch[0], str(outside))
    assert not list(job.location_path.glob("_rolling_back-*"))
    assert len(list(outside.iterdir())) == 2
    again = job.but(out="out2")
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)


def waits_until(monkeypatch: pytest.MonkeyPatch, gives_sign: Callable[[], object]) -> None:
    """Let a rollback, which waits for a sign of life, find one as soon as it has waited."""
    check = partial(stopped.check_silent, sleep=lambda _: gives_sign())
    monkeypatch.setattr(stopped, "check_silent", check)


@pytest.mark.slow
def test_a_query_that_another_application_runs_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was killed leaves no end of its run, as one that runs on."""
    job, names, location = three_epochs(job)
    runs = job.checkpoint_path / RUNS
    for record in runs.glob("*-ended-*.json"):
        record.unlink()
    newest = max(runs.glob("*-note-*.json"))
    waits_until(monkeypatch, lambda: newest.rename(newest.with_name(f"9{newest.name[1:]}")))
    # Nothing is claimed either: a driver that runs on is not fenced.
    drivers = list((job.checkpoint_path / "drivers").iterdir())
    with refused(
        ckpt.errors.RestoreError, "runs", "sign of life", unchanged=job.location_path / "state"
    ):
        ckpt.location(location).rollback(names[1])
    assert list((job.checkpoint_path / "drivers").iterdir()) == drivers
    assert not list(job.location_path.glob("_before_rollback-*"))
    ckpt.location(location).rollback(names[1], force=True)
    job.but(out="out2").run()
    assert job.but(out="out2").result() == expected_after(job.feed.rows, 40)


@pytest.mark.slow
def test_a_query_that_a_connect_server_may_run_is_refused_however_silent_it_is(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server continues a query whose client was killed; no record says when that ends."""
    job, names, location = three_epochs(job)
    runs = job.checkpoint_path / RUNS
    for record in runs.glob("*-ended-*.json"):
        record.unlink()
    monkeypatch.setattr(stopped, "SILENCE_MS", 0)
    newest = max(runs.glob("*-started-*.json"))
    started = decode_run_record(newest.read_bytes())
    assert isinstance(started, RunStarted)
    assert not started.outlives_client
    over_connect = msgspec.structs.replace(started, outlives_client=True)
    newest.write_bytes(encode_run_record(over_connect))
    with refused(ckpt.errors.RestoreError, "Spark Connect", "Attach", "force", unchanged=job.base):
        ckpt.location(location).rollback(names[1])
    newest.write_bytes(encode_run_record(started))
    back = ckpt.location(location).rollback(names[1])  # a driver that is gone
    assert Path(back.kept).name.startswith("_before_rollback-")


@pytest.mark.slow
def test_an_undo_finds_the_checkpoints_of_the_query(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a wrong directory there is no record of a run, and a claim would fence nobody."""
    outside, location = str(job.base / "outside"), str(job.location_path)
    job = job.using({INLINE: "0b", RETAINED: 10, CHECKPOINT_DIR: outside})
    for epoch in range(2):
        job.feed.add(events_of(epoch))
        query = job.run()
    to = f"chk-{min(row.checkpoint_id for row in completed(query))}"
    kept = Path(ckpt.location(location).rollback(to, outside).kept).name
    ckpt.location(location).rollback(kept, outside)  # no query has run there since
    kept = Path(ckpt.location(location).rollback(to, outside).kept).name
    again = job.but(out="out2")
    with again.running() as query:
        query.processAllAvailable()
        # The call comes from another application.
        monkeypatch.setattr(ClassicSession, "is_active", lambda *_: False)
        elsewhere = str(job.base / "elsewhere")
        for force in (True, False):
            with refused(
                ckpt.errors.RestoreError, "checkpoints_directory", unchanged=job.location_path
            ):
                ckpt.location(location).rollback(kept, elsewhere, force=force)
        for right in (outside, None):
            waits_until(monkeypatch, query._coordinator._recorder._note)
            with refused(ckpt.errors.RestoreError, "query runs", unchanged=job.location_path):
                ckpt.location(location).rollback(kept, right)
        job.feed.add(events_of(2))
        query.processAllAvailable()
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)
    ckpt.location(location).rollback(kept, force=True)  # the user knows that it is stopped


def three_epochs(job: Job) -> tuple[Job, dict[int, str], str]:
    """Return the job with a checkpoint for each of three epochs, their names, and the location."""
    job = job.using({INLINE: "0b", RETAINED: 10})
    for epoch in range(3):
        job.feed.add(events_of(epoch))
        query = job.run()
    names = {row.epoch: Path(row.path).name for row in completed(query)}
    return job, names, str(job.location_path)


@pytest.fixture
def of_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two rollbacks of this process not wait for each other."""
    monkeypatch.setattr(rolling_back, "turn_of", lambda _: nullcontext())


@pytest.mark.slow
@pytest.mark.usefixtures("of_two_processes")
def test_of_two_rollbacks_at_once_the_later_one_counts(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes what the first has staged for leftovers. The first finds itself fenced."""
    job, names, location = three_epochs(job)
    seed = rolling_back.seed

    def beside_another(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(rolling_back, "seed", seed)
        ckpt.location(location).rollback(names[0])
        seed(*arguments, **named)

    monkeypatch.setattr(rolling_back, "seed", beside_another)
    with pytest.raises(ckpt.errors.FencedError):
        ckpt.location(location).rollback(names[1])
    assert len(list(job.location_path.glob("_before_rollback-*"))) == 1
    again = job.but(out="out2")
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)


@pytest.mark.slow
@pytest.mark.usefixtures("of_two_processes")
@pytest.mark.parametrize("is_outside", [False, True])
def test_a_rollback_that_fails_leaves_what_the_later_one_stages(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_outside: bool
) -> None:
    """The first fails while the second is about to swap the content."""
    outside = str(job.base / "outside") if is_outside else None
    job, names, location = three_epochs(job.using({CHECKPOINT_DIR: outside} if outside else {}))
    seed, swap = rolling_back.seed, rolling_back.swap
    staged, has_failed = threading.Event(), threading.Event()

    def waits(*arguments: Any) -> None:
        staged.set()
        assert has_failed.wait(60)
        swap(*arguments)

    with ThreadPoolExecutor(1) as pool:
        later = []

        def beside_another(*arguments: Any, **named: Any) -> None:
            monkeypatch.setattr(rolling_back, "seed", seed)
            monkeypatch.setattr(rolling_back, "swap", waits)
            later.append(pool.submit(ckpt.location(location).rollback, names[0], outside))
            assert staged.wait(60)
            msg = "what was staged is gone"
            raise OSError(msg)

        monkeypatch.setattr(rolling_back, "seed", beside_another)
        with pytest.raises(ckpt.errors.FencedError):
            ckpt.location(location).rollback(names[1], outside)
        has_failed.set()
        assert later[0].result(60).to == names[0]
    again = job.but(out="out2")
    again.run()
    assert again.result() == expected_after(job.feed.rows, 20)


@pytest.mark.slow
@pytest.mark.usefixtures("of_two_processes")
@pytest.mark.parametrize("finished", [False, True], ids=["begins", "has ended"])
def test_a_rollback_that_is_overtaken_at_its_last_step_changes_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """Another one claims the location after the staging, when nothing was moved yet."""
    job, names, location = three_epochs(job)
    swap = rolling_back.swap

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(rolling_back, "swap", swap)
        if finished:
            ckpt.location(location).rollback(names[0])
        else:
            with closing(find_store(LocalStorage(job.checkpoint_path))) as store:
                store.claim()
        swap(*arguments)

    monkeypatch.setattr(rolling_back, "swap", overtaken)
    with pytest.raises(ckpt.errors.FencedError):
        ckpt.location(location).rollback(names[1])
    again = job.but(out="out2") if finished else job
    again.run()
    wanted = expected_after(job.feed.rows, 20) if finished else expected(job.feed.rows)
    assert again.result() == wanted


@pytest.mark.slow
def test_a_location_whose_copy_runs_goes_back(job: Job) -> None:
    """The copy has the same query id, and neither is touched by what the other one does."""
    job, names, location = three_epochs(job)
    copy = job.but(location="copy", out="out-of-copy")
    shutil.copytree(location, copy.location_path)
    with copy.running() as query:
        query.processAllAvailable()
        done = ckpt.location(location).rollback(names[0])
        with pytest.raises(
            ckpt.errors.RestoreError, match=rf"runs at {copy.location_path}: stop it"
        ):
            ckpt.location(str(copy.location_path)).rollback(names[0])
        ckpt.location(location).rollback(Path(done.kept).name)
        query.processAllAvailable()
        assert query.isActive
    assert job.result() == expected(job.feed.rows)


@pytest.mark.slow
def test_a_query_that_is_being_drained_is_refused(job: Job) -> None:
    """Its run has ended, and its last epoch may run: in it, all timers fire."""
    job, names, location = three_epochs(job)
    (job.location_path / "_draining").write_text('{"epoch":3,"drained_at_ms":9,"watermark_ms":0}')
    with refused(ckpt.errors.RestoreError, "drained", "force=True", unchanged=job.location_path):
        ckpt.location(location).rollback(names[1])
    assert ckpt.location(location).rollback(names[1], force=True).to == names[1]


@pytest.mark.slow
def test_savepoints_and_shadows_in_the_location_stay_where_they_are(job: Job) -> None:
    """The history has their paths, and what was before a rollback may be deleted.

    A shadow is discarded where it was begun.
    """
    job = job.using({INLINE: "0b", RETAINED: 10})
    job.feed.add(events_of(0))
    location = job.location_path
    with job.running() as query:
        query.processAllAvailable()
        first = query.triggerSavepoint(str(location / "savepoints"))
        second = query.triggerSavepoint(str(location))
        third = query.triggerSavepoint(str(location / "mine" / "of-may"))
        checkpoint = query.triggerCheckpoint()
    left = location / "_shadow-0123456789ab" / "candidate" / "metadata"
    left.parent.mkdir(parents=True)
    left.touch()
    made = ckpt.location(str(location)).rollback(f"chk-{checkpoint.checkpoint_id}")
    assert left.exists()
    assert {"offsets", "pyspark_ckpt"} <= {path.name for path in Path(made.kept).iterdir()}
    for savepoint in (first, second, third):
        assert ckpt.location(savepoint.path).verify()


@pytest.mark.slow
def test_records_that_cannot_be_listed_are_no_silence(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, names, location = three_epochs(job)
    found = LocalStorage.list

    def listed(storage: LocalStorage, directory: str | None = None) -> list[str]:
        if directory == RUNS:
            raise PermissionError(RUNS)
        return found(storage, directory)

    monkeypatch.setattr(LocalStorage, "list", listed)
    with refused(ckpt.errors.RestoreError, "cannot be listed", "force", unchanged=job.base):
        ckpt.location(location).rollback(names[1])
