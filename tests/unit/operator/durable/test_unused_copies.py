"""Local copies that no task opens are removed by age and size; one in use never is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from pyspark_ckpt.operator.durable.local_copy import (
    Keeping,
    copies_root,
    open_local_copy,
    remove_unused,
    subtask_directory,
)
from pyspark_ckpt.storage.open import LocalStorage

pytestmark = pytest.mark.slow

HOUR_S = 3600.0
AT_ONCE = Keeping(longest_s=0, shortest_s=0, every_s=0)
BY_AGE = Keeping(longest_s=HOUR_S, shortest_s=60, every_s=0)

_HOLDS = """
import sys
from pathlib import Path
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
directory, storage, root = map(Path, sys.argv[1:])
with open_local_copy(directory, "heap", LocalStorage(storage), None, root):
    print("held", flush=True)
    sys.stdin.read()
"""


class Copies:
    """The local copies of an executor."""

    def __init__(self, root: Path) -> None:
        self.local, self.storage = root / "local", root / "checkpoints"
        self.root = copies_root(self.local)

    def directory(self, query: str, subtask: int = 0) -> Path:
        return subtask_directory(self.local, query, "op", subtask)

    def make(self, query: str, subtask: int = 0, *, unused_s: float = 0, size: int = 0) -> Path:
        """Make a copy that was last opened this many seconds ago."""
        directory = self.directory(query, subtask)
        with open_local_copy(directory, "heap", LocalStorage(self.storage), None, self.root):
            (directory / "more").write_bytes(b"x" * size)
        opened_s = time.time() - unused_s
        os.utime(directory / "lock", (opened_s, opened_s))
        return directory

    def remove(self, keeping: Keeping) -> set[Path]:
        """Remove unused copies, and wait for the thread that deletes them."""
        removed = remove_unused(self.root, keeping)
        for thread in threading.enumerate():
            if thread.name == "pyspark_ckpt removal":
                thread.join()
        assert not list(self.root.glob("removed-*"))
        assert not any(path.exists() for path in removed)
        return set(removed)


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


def test_copies_go_by_age(copies: Copies) -> None:
    ended = [copies.make("ended", subtask, unused_s=2 * HOUR_S) for subtask in range(2)]
    moved = copies.make("running", 1, unused_s=2 * HOUR_S)
    young = [copies.make("running", 0), copies.make("paused", unused_s=0.9 * HOUR_S)]
    assert copies.remove(BY_AGE) == {*ended, moved}
    assert all(path.is_dir() for path in young)
    assert not (copies.root / "ended").exists()
    assert copies.remove(BY_AGE) == set()
    assert copies.make("ended").is_dir()  # it may come back


def test_of_copies_that_are_too_much_the_longest_unused_go(copies: Copies) -> None:
    old, older = (copies.make("q", n, unused_s=300 + n, size=3 << 20) for n in range(2))
    fresh = copies.make("q", 2, unused_s=5, size=30 << 20)
    most = Keeping(longest_s=HOUR_S, shortest_s=60, most_bytes=5 << 20, every_s=0)
    assert copies.remove(most) == {older}
    assert old.is_dir()
    assert fresh.is_dir()


@pytest.mark.soak_variants
@pytest.mark.parametrize("held", [1, 2])
def test_a_copy_in_use_stays_however_old(copies: Copies, held: int) -> None:
    """Another process uses it; with two copies, it uses the private one."""
    directory = copies.make("q")
    arguments = [sys.executable, "-c", _HOLDS, directory, copies.storage, copies.root]
    with ExitStack() as stack:
        holders = []
        for _ in range(held):
            process = stack.enter_context(
                subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=PIPE, text=True)
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            holders.append(process)
        while holders:
            os.utime(directory / "lock", (0, 0))
            assert copies.remove(AT_ONCE) == set()
            assert (directory / "heap").is_dir()
            holders.pop(0).communicate("")  # the copy in the subtask's own place is removed first
    assert copies.remove(AT_ONCE) == {directory}


def test_a_snapshot_that_is_uploaded_keeps_its_copy(copies: Copies) -> None:
    directory = copies.make("q", unused_s=2 * HOUR_S)
    (directory / "snapshots" / "0123456789abcdef").mkdir(parents=True)
    lock = directory / "snapshots" / "0123456789abcdef" / "lock"
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert copies.remove(AT_ONCE) == set()
    assert copies.remove(AT_ONCE) == {directory}


def test_one_look_in_a_while_is_enough(copies: Copies) -> None:
    copies.make("q", unused_s=2 * HOUR_S)
    seldom = Keeping(every_s=1000)
    assert len(copies.remove(seldom)) == 1
    copies.make("q", unused_s=2 * HOUR_S)
    assert copies.remove(seldom) == set()
    assert len(copies.remove(BY_AGE)) == 1


def test_nothing_but_copies_is_removed(copies: Copies) -> None:
    copies.make("q")
    for name in ("other/file", "a/b/c/d/lock", "x/lock"):
        path = copies.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 0))
    beside = copies.local / "spark-blocks" / "a" / "b" / "lock"
    beside.parent.mkdir(parents=True)
    beside.touch()
    os.utime(beside, (0, 0))
    assert copies.remove(BY_AGE) == set()
    assert beside.exists()
    assert remove_unused(copies.local / "none there", BY_AGE) == []


_CLAIMS_AGAIN_AND_AGAIN = """
import sys
from pathlib import Path
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
directory, storage = map(Path, sys.argv[1:3])
for number in range(int(sys.argv[3])):
    with open_local_copy(directory, "heap", LocalStorage(storage), None) as copy:
        mark = copy.scratch / "mark"
        mark.write_text(str(number))
        assert mark.read_text() == str(number)
print("whole", flush=True)
"""


def test_attempts_that_begin_and_end_beside_each_other_leave_each_other_alone(
    copies: Copies,
) -> None:
    """The holder of the copy sweeps private ones, which their attempts make and remove."""
    directory = copies.make("q")
    arguments = [sys.executable, "-c", _CLAIMS_AGAIN_AND_AGAIN, directory, copies.storage, "250"]
    tasks = [subprocess.Popen(arguments, stdout=PIPE, text=True) for _ in range(4)]
    assert [task.communicate()[0] for task in tasks] == ["whole\n"] * 4
    assert not list(directory.glob("private-*"))


_OPENS_AGAIN_AND_AGAIN = """
import sys
from pathlib import Path
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
directory, storage, root = map(Path, sys.argv[1:4])
for number in range(int(sys.argv[4])):
    with open_local_copy(directory, "heap", LocalStorage(storage), None, root) as copy:
        mark = copy.scratch / "mark"
        for _ in range(20):
            mark.write_text(str(number))
            assert mark.read_text() == str(number)
print("whole", flush=True)
"""


def test_tasks_that_open_copies_while_others_remove_them_lose_none(
    copies: Copies, caplog: pytest.LogCaptureFixture
) -> None:
    """Three processes open one copy, or private ones; a fourth removes what is not in use."""
    directory = copies.make("q")
    arguments = [sys.executable, "-c", _OPENS_AGAIN_AND_AGAIN, directory, copies.storage]
    tasks = [
        subprocess.Popen([*arguments, copies.root, "60"], stdout=PIPE, text=True) for _ in range(3)
    ]
    removed = 0
    while any(task.poll() is None for task in tasks):
        removed += len(remove_unused(copies.root, AT_ONCE))
    assert [task.communicate()[0] for task in tasks] == ["whole\n"] * 3
    print(f"{removed} copies were removed in between")
    assert removed > 0
    assert not caplog.records  # no look failed because of what the others did at the same time
