"""Scenarios 23 and 24: a driver is stopped, another one takes over, the first continues.

The first driver is a process that stops itself (SIGSTOP) at one operation; the second is this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.settings import HighAvailability, Settings
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from pyspark_ckpt.stores.open import open_store
from tests.faults.epochs import NUM_RETAINED, QUERY_ID, Epochs, files_of, restored_epoch
from tests.servers.kubernetes_api import ConfigMaps

ROOT = Path(__file__).parents[3]

FILES = [
    ("before exists drivers/2", 4),  # after its first checkpoint: before it checks the fence
    ("before write chk-2/_author", 1),
    ("after write chk-2/_author", 1),
    ("before write chk-2/_metadata", 1),
    ("after write chk-2/_metadata", 1),
    ("after read chk-2/_author", 2),
]


class FirstDriver:
    """A process that takes some checkpoints and stops in the middle of one."""

    def __init__(
        self,
        url: str,
        settings: dict[str, str],
        stop_at: str,
        occurrence: int,
        checkpoints: int = 3,
    ) -> None:
        program = ROOT / "tests" / "faults" / "driver_program.py"
        arguments = [url, json.dumps(settings), str(checkpoints), stop_at, str(occurrence)]
        self._process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended before {stop_at}"

    def go_on(self) -> list[dict[str, object]]:
        """Let it continue to its end; return what became of its checkpoints."""
        self._process.send_signal(signal.SIGCONT)
        output, _ = self._process.communicate("go on\n", timeout=60)
        assert self._process.returncode == 0
        return [json.loads(line) for line in output.splitlines()]


def taken_over(
    storage: Storage,
    settings: dict[str, str],
    first: FirstDriver,
    *,
    has_completed_2: bool = False,
) -> list[int]:
    """Take three checkpoints as the second driver, then let the first continue.

    Returns the newest checkpoint that the second one found, and its own.
    """
    epochs = Epochs(storage)
    runner = epochs.runner(**settings)
    for _ in range(2):
        epochs.commit()
    seen = [runner.newest()]
    for _ in range(3):
        epochs.commit()
        taken = runner.take(epochs.committed_epoch, periodic=False)
        assert isinstance(taken, CompletedCheckpoint)
        seen.append(taken)
    store = open_store(storage, Settings(**settings), QUERY_ID)
    before = checkpoints(store, storage)
    reports = first.go_on()
    assert reports[0] == {"completed": 1}
    fenced = [line for line in reports[1:] if line.get("reason") == "fenced"]
    if has_completed_2:
        assert reports[1:] == [{"completed": 2}, *fenced]
    else:
        assert reports[1:] == fenced
    assert len(fenced) == 2 - has_completed_2
    assert checkpoints(store, storage) == before
    epochs.commit()
    taken = runner.take(epochs.committed_epoch, periodic=False)
    assert isinstance(taken, CompletedCheckpoint)
    assert taken.checkpoint_id == seen[-1].checkpoint_id + 1
    assert restored_epoch(store, storage, taken.checkpoint_id) == taken.epoch
    directories = {name for name in storage.list() if name.startswith("chk-")}
    assert directories == {f"chk-{taken.checkpoint_id - n}" for n in range(NUM_RETAINED)}
    store.close()
    runner.close()
    return [each.checkpoint_id for each in seen if each is not None]


def checkpoints(store: CompletedCheckpointStore, storage: Storage) -> dict[int, int]:
    """Return the epochs of all complete checkpoints; each has all of its files, and one author."""
    for number in store.ids():
        assert {f"chk-{number}/_metadata"} <= files_of(storage, f"chk-{number}")
    return {number: restored_epoch(store, storage, number) for number in store.ids()}


@pytest.mark.soak_variants
@pytest.mark.parametrize(("stop_at", "occurrence"), FILES)
def test_a_driver_that_was_stopped_is_fenced_when_it_continues(
    tmp_path: Path, stop_at: str, occurrence: int
) -> None:
    """Scenario 24: on local files."""
    storage = open_storage(str(tmp_path / "checkpoints"))
    first = FirstDriver(storage.url, {}, stop_at, occurrence)
    seen = taken_over(storage, {}, first, has_completed_2=occurrence == 2)
    is_published = stop_at == "after write chk-2/_metadata" or occurrence == 2
    is_reserved = "_metadata" in stop_at or "read" in stop_at or stop_at.startswith("after")
    newest = 2 if is_published else 1
    following = 3 if is_reserved else 2
    assert seen == [newest, following, following + 1, following + 2]


def test_a_driver_that_was_stopped_between_finding_garbage_and_deleting_it_deletes_nothing(
    tmp_path: Path,
) -> None:
    """Scenario 24: the next driver decides about the garbage that it found."""
    storage = open_storage(str(tmp_path / "checkpoints"))
    first = FirstDriver(storage.url, {}, "after list taskowned", 6, checkpoints=6)
    retained = CompletedCheckpoints(storage)
    assert retained.ids() == [5, 6]
    # One is needed. The other operator has a newer base snapshot, and no attempt refers to its own.
    of_epoch_0 = [path for path in files_of(storage, "taskowned") if "-0-0-" in path]
    assert len(of_epoch_0) == 2, "there is no garbage"
    second = Epochs(storage).runner()
    before = files_of(storage)
    assert first.go_on() == [{"completed": number} for number in range(1, 7)]
    assert files_of(storage) == before
    second.close()


@pytest.mark.slow
def test_a_driver_that_was_stopped_publishes_nothing_in_s3(
    s3_url: str, s3_environment: dict[str, str]
) -> None:
    """Scenario 24: in an object store."""
    first = FirstDriver(s3_url, {}, "before write chk-2/_metadata", 1)
    assert taken_over(open_storage(s3_url), {}, first) == [1, 3, 4, 5]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_driver_that_was_stopped_changes_nothing_in_zookeeper(
    tmp_path: Path, zookeeper_address: str, when: str
) -> None:
    """Scenario 24: with ZooKeeper."""
    settings = {
        "high_availability_type": HighAvailability.ZOOKEEPER,
        "zookeeper_quorum": zookeeper_address,
        "zookeeper_root": f"/{when}{tmp_path.name}",
    }
    storage = open_storage(str(tmp_path / "checkpoints"))
    first = FirstDriver(storage.url, settings, f"{when} write chk-2/_metadata", 1)
    assert taken_over(storage, settings, first) == [1, 3, 4, 5]


@pytest.mark.soak
def test_a_driver_that_was_stopped_changes_nothing_in_kubernetes(
    tmp_path: Path, kubernetes: ConfigMaps
) -> None:
    """Scenario 24: with a ConfigMap."""
    settings = {"high_availability_type": HighAvailability.KUBERNETES}
    storage = open_storage(str(tmp_path / "checkpoints"))
    first = FirstDriver(storage.url, settings, "before write chk-2/_metadata", 1)
    assert taken_over(storage, settings, first) == [1, 3, 4, 5]
