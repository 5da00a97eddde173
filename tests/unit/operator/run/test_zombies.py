"""Attempts that continue after they were given up, and files that many checkpoints share.

With the real files of a subtask and the real checkpoints of its query.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyspark_ckpt.checkpoint.cleaning import garbage
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage
from state_backends import BACKEND_TYPES
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask


class StallingStorage(LocalStorage):
    """A storage that stalls before a file gets its name, after its content is written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.has_stalled, self.may_go_on = threading.Event(), threading.Event()

    def write(self, relative: str, chunks: Iterable[bytes]) -> FileReference:
        def stalling() -> Iterable[bytes]:
            yield from chunks
            self.has_stalled.set()
            assert self.may_go_on.wait(60)

        return super().write(relative, stalling())


@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_zombie_s_segment_that_appears_late_is_in_no_state(
    tmp_path: Path, storage: LocalStorage, handle: Handle, backend_type: str
) -> None:
    """Scenario 13: attempt 1 stalls at its end, attempt 2 commits, then attempt 1's file appears.

    Attempt 1 no longer held the local copy, so the retry has it.
    """
    subtask = MaterializedSubtask(tmp_path / "local", backend_type, storage, handle)
    subtask.epoch({b"a": b"before", b"b": b"before"})
    stalling = StallingStorage(storage.root)
    zombie = MaterializedSubtask(
        subtask.directory, backend_type, stalling, subtask.handle, number=subtask.number
    )
    handles: list[Handle] = []
    thread = threading.Thread(target=lambda: handles.append(zombie.attempt({b"a": b"zombie"})))
    thread.start()
    assert stalling.has_stalled.wait(60)
    committed = subtask.epoch({b"a": b"after"})
    stalling.may_go_on.set()
    thread.join(60)
    (given_up,) = handles
    (orphan,) = {file.path for file in given_up.files()} - {file.path for file in committed.files()}
    assert storage.exists(orphan)
    subtask.check()
    shutil.rmtree(subtask.directory)
    assert subtask.read() == {b"a": b"after", b"b": b"before"}
    needed = [file.path for file in committed.files()]
    assert garbage(storage, needed, committed.epoch) == [orphan]


def test_all_checkpoints_that_share_a_corrupt_file_refuse_and_no_other(
    tmp_path: Path, storage: LocalStorage, handle: Handle
) -> None:
    """Scenario 11: of nine checkpoints, an SST file that some share is changed."""
    subtask = MaterializedSubtask(tmp_path / "local", "rocksdb", storage, handle, uploads=None)
    handles: dict[int, Handle] = {}
    states: dict[int, dict[bytes, bytes]] = {}
    for number in range(1, 10):
        rows = {b"%d %03d" % (number, row): b"%d" % number * 50 for row in range(200)}
        subtask.epoch(rows, NEVER)
        # Its base has the rows of this epoch in a separate SST file, and those before it.
        handles[number] = subtask.epoch({}, ALWAYS)
        states[number] = dict(subtask.state)
    paths = {
        number: {each.file.path for each in one.base.files if each.name.endswith(".sst")}
        for number, one in handles.items()
        if one.base is not None
    }
    counted = Counter(path for each in paths.values() for path in each if path not in paths[1])
    ((path, sharing),) = counted.most_common(1)
    print({number: path in paths[number] for number in paths})
    assert sharing >= 2
    broken = storage.root / path
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    for number, one in handles.items():
        for backend_type in BACKEND_TYPES:
            copy = MaterializedSubtask(
                tmp_path / f"{number} {backend_type}", backend_type, storage, one
            )
            if path not in paths[number]:
                assert copy.read() == states[number]
            else:
                with pytest.raises(CorruptFileError, match=broken.name):
                    copy.read()
    assert broken.read_bytes() == content
