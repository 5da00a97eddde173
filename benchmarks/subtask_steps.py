"""The steps of a subtask with a large state, each in a separate process, without Spark.

``python -m benchmarks.subtask_steps STEP BACKEND DIRECTORY BYTES VALUE_BYTES`` runs one step. Every
step leaves its handle in the directory, where the next one finds it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.machine.process_memory import BEGIN
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.materialization import EpochStart, Materializer
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.operator.run.function import WRITES_SHARE
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stored.savepoint_copy import SubtaskCopy

LIMIT_BYTES = 64 << 20
"""The memory limit of the epochs."""

_FIRST_BYTES = 1 << 20
_ALWAYS = Materialization(interval_ms=0, min_changelog_bytes=0, max_segments=1)


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of a subtask, and the size of its state."""

    directory: Path
    backend: str
    size_bytes: int
    value_bytes: int

    @property
    def storage(self) -> LocalStorage:
        """The query's checkpoints directory."""
        return LocalStorage(self.directory / "checkpoints")

    @property
    def local(self) -> Path:
        """The subtask's directory on the executor."""
        return self.directory / f"local-{self.backend}"

    def handle(self, name: str) -> Handle:
        """Return a handle that an earlier step has left."""
        return decode_handle((self.directory / f"{name}.handle").read_bytes())

    def leave(self, name: str, handle: Handle) -> None:
        """Leave a handle for a later step."""
        (self.directory / f"{name}.handle").write_bytes(encode_handle(handle))

    def open(self, handle: Handle) -> None:
        """Open the local copy at a handle, as an epoch does first."""
        with open_local_copy(self.local, self.backend, self.storage, handle) as copy:
            assert copy.backend.version() == handle.version

    def written(self, handle: Handle, epoch: int, size_bytes: int, first: int) -> Handle:
        """Run an epoch that writes this many bytes."""
        with open_local_copy(self.local, self.backend, self.storage, handle) as copy:
            writes = EpochWrites(LIMIT_BYTES // WRITES_SHARE, copy.scratch)
            noise = os.urandom(self.value_bytes)
            for number in range(first, first + size_bytes // self.value_bytes):
                value = noise[: self.value_bytes - 12] + b"%012d" % number
                writes.add(b"\x00\x01\x00%012d" % (number * 7919 % 1_000_000_007), value)
            segment = make_segment(self.storage, handle, writes.all_in_order(), epoch, 0)
            writes.close()
        assert segment is not None
        segments = (*handle.segments, segment)
        return msgspec.structs.replace(handle, epoch=epoch, segments=segments)


def _first(place: Place) -> None:
    handle = Handle(
        query_id="q",
        uid="u",
        subtask=0,
        parallelism=1,
        max_parallelism=128,
        epoch=0,
        key_schema="{}",
    )
    handle = place.written(handle, 1, _FIRST_BYTES, 0)
    place.open(handle)
    place.leave("first", handle)


def _backfill(place: Place) -> None:
    place.leave("filled", place.written(place.handle("first"), 2, place.size_bytes, 10**6))


def _next_epoch(place: Place) -> None:
    place.open(place.handle("filled"))


def _base(place: Place) -> None:
    handle = place.handle("filled")
    with open_local_copy(place.local, place.backend, place.storage, handle) as copy:
        materializer = Materializer(copy, place.storage, _ALWAYS, None)
        handle = materializer.advance(handle, EpochStart(3, 0, "run"))
    assert handle.base is not None
    assert not handle.segments
    place.leave("based", handle)


def _rebuild(place: Place) -> None:
    shutil.rmtree(place.local)
    place.open(place.handle("based"))


def _changelog(place: Place) -> None:
    shutil.rmtree(place.local)
    place.open(place.handle("filled"))


def _changelog_savepoint(place: Place) -> None:
    target = place.directory / "early-savepoint"
    target.mkdir()
    _copy(place, "filled", target)
    shutil.rmtree(target)


def _savepoint(place: Place) -> None:
    target = place.directory / "savepoint"
    target.mkdir(exist_ok=True)
    place.leave("saved", _copy(place, "based", target))


def _copy(place: Place, name: str, target: Path) -> Handle:
    return SubtaskCopy(
        handle=place.handle(name),
        source=str(place.directory / "checkpoints"),
        target=str(target),
        is_canonical=True,
        token=place.backend,
    ).run()


def _restore(place: Place) -> None:
    shutil.rmtree(place.local)
    storage, handle = LocalStorage(place.directory / "savepoint"), place.handle("saved")
    with open_local_copy(place.local, place.backend, storage, handle) as copy:
        assert copy.backend.version() == handle.version


STEPS: dict[str, tuple[Callable[[Place], None], str]] = {
    "first": (_first, "an epoch that writes 1 MB"),
    "backfill": (_backfill, "the epoch of the back-fill"),
    "next-epoch": (_next_epoch, "the next epoch opens its copy"),
    "changelog-savepoint": (_changelog_savepoint, "a canonical savepoint of the changelog"),
    "base": (_base, "a base snapshot is taken, checked and uploaded"),
    "rebuild": (_rebuild, "the copy is lost: rebuilt from the base snapshot"),
    "changelog": (_changelog, "the copy is lost: rebuilt from the changelog"),
    "savepoint": (_savepoint, "a canonical savepoint of the base snapshot"),
    "restore": (_restore, "the copy is built from the savepoint"),
}
"""The steps in their order, with what they are called."""


def command(step: str, place: Place) -> list[str]:
    """Return the command that runs a step in a separate process."""
    sizes = [str(place.size_bytes), str(place.value_bytes)]
    module = "benchmarks.subtask_steps"
    return [sys.executable, "-m", module, step, place.backend, str(place.directory), *sizes]


def main(arguments: Iterator[str]) -> None:
    """Run the step that the arguments name."""
    step, backend, directory, size_bytes, value_bytes = arguments
    os.environ["SPARK_LOCAL_DIRS"] = directory
    place = Place(Path(directory), backend, int(size_bytes), int(value_bytes))
    print(BEGIN, flush=True)
    STEPS[step][0](place)


if __name__ == "__main__":
    main(iter(sys.argv[1:]))
