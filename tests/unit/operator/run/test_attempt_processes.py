"""Two executors run one epoch of a subtask: real processes, some of which stand still.

Oracle: a dict of what the accepted attempts wrote. The test does what Spark does, and accepts one
handle, the test does; the checkpoints and the clean-up after them are the library's.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.formats.handle import KEPT_PREDECESSORS, Handle
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from state_backends import BACKEND_TYPES
from tests.faults.epochs import COUNT, NUM_RETAINED, QUERY_ID, Epochs, files_of, restored_epoch
from tests.faults.subtask_program import STOPS, packed, unpacked
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask, Writes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    return random.Random(seed)


class Attempt:
    """A process that runs the next epoch of a subtask, up to where it stops itself."""

    def __init__(self, subtask: MaterializedSubtask, place: Path, stop_at: str, writes: Writes):
        program = ROOT / "tests" / "faults" / "subtask_program.py"
        arguments = [subtask.storage.url, str(place), subtask.backend_type, stop_at]
        self._process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        given = {
            "handle": packed(subtask.handle),
            "writes": {key.decode(): (value or b"").decode() for key, value in writes.items()},
            "base": subtask.settings is ALWAYS,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()

    def await_stop(self) -> None:
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended before it came to where it stops"

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ended(self) -> dict[str, str]:
        """Return what it prints at its end: its handle or its error."""
        output, _ = self._process.communicate("go on\n", timeout=60)
        assert self._process.returncode == 0
        answer: dict[str, str] = json.loads(output)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Running:
    """A query of which one subtask has state; each epoch that is accepted is checkpointed."""

    def __init__(self, storage: LocalStorage, place: Path, backend_type: str) -> None:
        self.storage = storage
        self.epochs = Epochs(storage)
        self.runner: CheckpointRunner = self.epochs.runner()
        first = COUNT.first_handle(QUERY_ID, 0, 0)
        self.subtask = MaterializedSubtask(
            place, backend_type, storage, first, settings=NEVER, uploads=None, number=-1
        )
        for number in range(3):
            self.epoch({b"a": b"%d" % number, b"of %d" % number: b"x" * 100})

    def epoch(self, writes: Writes) -> None:
        self.subtask.epoch(writes)
        self._commit()

    def accept(self, handle: Handle, writes: dict[bytes, bytes]) -> None:
        """Commit the epoch of an attempt in another process."""
        self.subtask.handle = handle
        self.subtask.number += 1
        self.subtask.state |= writes
        self._commit()

    def _commit(self) -> None:
        self.epochs.commit_handle(self.subtask.handle)
        taken = self.runner.take(self.epochs.committed_epoch, periodic=False)
        assert isinstance(taken, CompletedCheckpoint)

    def run_past_what_is_kept(self) -> None:
        for number in range(NUM_RETAINED + KEPT_PREDECESSORS + 1):
            self.epoch({b"past": b"%d" % number})

    def check(self, *places: Path) -> None:
        """Check the state, rebuilt and at each place, and all checkpoints."""
        self.subtask.check()
        for place in (self.subtask.directory.with_name("new"), *places):
            fresh = MaterializedSubtask(
                place, self.subtask.backend_type, self.storage, self.subtask.handle
            )
            assert fresh.read() == self.subtask.state, place
        store = CompletedCheckpoints(self.storage)
        for number in store.ids():
            assert restored_epoch(store, self.storage, number) == store.read(number).epoch
            counts = [each for each in store.read(number).operators if each.uid == COUNT.uid]
            assert [[handle.subtask for handle in each.handles] for each in counts] == [[0]]

    def left(self) -> set[str]:
        """Return the files that no checkpoint needs."""
        store = CompletedCheckpoints(self.storage)
        retained = [store.read(number) for number in store.ids()]
        files = {file.path for metadata in retained for file in metadata.files()}
        return (
            self.state_files() - files - {path for each in retained for path in each.kept_files()}
        )

    def hidden_files(self) -> set[str]:
        """Return the files that are written and have no name yet."""
        return {path for path in self.state_files() if "/." in path}

    def state_files(self) -> set[str]:
        return files_of(self.storage, "taskowned") | files_of(self.storage, "shared")


@pytest.fixture(params=BACKEND_TYPES)
def running(request: pytest.FixtureRequest, tmp_path: Path, storage: LocalStorage) -> Running:
    return Running(storage, tmp_path / "executor", request.param)


def files_of_handle(handle: Handle) -> set[str]:
    return {file.path for file in handle.files()}


@pytest.fixture
def begin(running: Running) -> Iterator[Callable[..., Attempt]]:
    """Return a function that begins attempts at the next epoch; none is left running."""
    attempts: list[Attempt] = []

    def begin(place: Path, stop_at: str, writes: Writes) -> Attempt:
        attempts.append(Attempt(running.subtask, place, stop_at, writes))
        return attempts[-1]

    yield begin
    for attempt in attempts:
        attempt.close()


@pytest.mark.soak_variants
def test_a_task_and_its_twin_on_another_executor_both_finish(
    running: Running, begin: Callable[..., Attempt], tmp_path: Path, chance: random.Random
) -> None:
    """Scenario 14: both continue after their files are written; one handle counts, by chance."""
    running.subtask.settings = ALWAYS
    places = [tmp_path / "first", tmp_path / "second"]
    writes = [{b"a": b"%d" % number, b"twin": b"%d" % number} for number in range(2)]
    stop_at = chance.choice(STOPS)
    twins = [begin(place, stop_at, each) for place, each in zip(places, writes, strict=True)]
    for twin in twins:
        twin.await_stop()
    for twin in twins:
        twin.go_on()
    handles = [unpacked(twin.ended()["handle"]) for twin in twins]
    first, second = map(files_of_handle, handles)
    own = [first - second, second - first]
    for each in own:
        kinds = {path.partition("/")[0] for path in each}
        assert kinds == {"shared", "taskowned"}, "no base snapshot or no segment of its own"
        assert each <= running.state_files()
    winner = chance.randrange(2)
    running.subtask.settings = NEVER
    running.accept(handles[winner], writes[winner])
    running.check(*places)
    running.run_past_what_is_kept()
    running.check(*places)
    assert not own[1 - winner] & running.state_files()
    assert running.left() == set()


@pytest.mark.soak_variants
def test_executors_that_stand_still_continue_after_they_are_given_up(
    running: Running, begin: Callable[..., Attempt], tmp_path: Path
) -> None:
    """Scenario 20: checkpoints and clean-ups come between, and nothing that they made stays.

    They stand still with a base snapshot written, with a segment written, and before they return
    their handle. One of them holds the local copy that the retry wants.
    """
    held = running.subtask.directory
    places = {"base": tmp_path / "second", "segment": held, "handle": tmp_path / "third"}
    running.subtask.settings = ALWAYS
    zombies = {
        stop_at: begin(places[stop_at], stop_at, {b"a": b"zombie", b"zombie": b"1"})
        for stop_at in STOPS
    }
    for zombie in zombies.values():
        zombie.await_stop()
    given_up = running.hidden_files()
    assert len(given_up) == 2, "what stands still has written no file"
    running.subtask.settings = NEVER
    running.epoch({b"a": b"retry"})
    running.run_past_what_is_kept()
    assert running.hidden_files() == set(), "nothing was cleaned while they stood still"
    before = running.state_files()
    for zombie in zombies.values():
        zombie.go_on()
    answers = {stop_at: zombie.ended() for stop_at, zombie in zombies.items()}
    print(answers)
    for stop_at in ("base", "segment"):
        assert "error" in answers[stop_at], "it named a file that was cleaned away"
    of_zombie = files_of_handle(unpacked(answers["handle"]["handle"]))
    assert not of_zombie <= before, "nothing of its own was cleaned"
    running.check(*places.values())
    running.epoch({b"b": b"after"})
    running.check(*places.values())
    assert running.left() == set()
