"""A subtask that takes base snapshots over several epochs, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pyspark_ckpt.formats.handle import Handle, following
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshot, upload, upload_steps
from pyspark_ckpt.operator.durable.materialization import EpochStart, Materializer
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.operator.table.writes import in_frames
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.open import Storage

State = dict[bytes, bytes]
Writes = Mapping[bytes, bytes | None]

NEVER = Materialization(interval_ms=10**15, min_changelog_bytes=10**15, max_segments=10**6)
ALWAYS = Materialization(interval_ms=0, min_changelog_bytes=0, max_segments=10**6)


class Uploads:
    """The uploads that epochs hand over; they run when the test says so."""

    def __init__(self) -> None:
        self.waiting: dict[Path, tuple[Storage, LocalSnapshot]] = {}

    def start(self, storage: Storage, snapshot: LocalSnapshot) -> None:
        self.waiting[snapshot.directory] = (storage, snapshot)

    def run(self) -> None:
        """Upload everything that waits."""
        for storage, snapshot in self.waiting.values():
            upload(storage, snapshot)
        self.waiting.clear()

    def step(self, directory: Path) -> bool:
        """Upload one more file of a snapshot; ``False`` once there is no more, or it is gone."""
        storage, snapshot = self.waiting[directory]
        try:
            with closing(upload_steps(storage, snapshot, wait=False)) as steps:
                next(steps)
        except (StopIteration, OSError):
            self.drop(directory)
            return False
        return True

    def drop(self, directory: Path) -> None:
        """Let the process die that should upload a snapshot."""
        self.waiting.pop(directory, None)


@dataclass
class MaterializedSubtask:
    """A subtask with the handle that Spark committed last, and the state that it must have."""

    directory: Path
    backend_type: str
    storage: Storage
    handle: Handle
    settings: Materialization = NEVER
    uploads: Uploads | None = field(default_factory=Uploads)
    inline_bytes: int = 0
    run_id: str = "run"
    now_ms: int = 0
    number: int = 0
    state: State = field(default_factory=dict)

    def attempt(self, writes: Writes) -> Handle:
        """Run the next epoch without committing it."""
        handle, number = self.handle, self.number + 1
        with open_local_copy(self.directory, self.backend_type, self.storage, handle) as copy:
            start = self.uploads.start if self.uploads else None
            materializer = Materializer(copy, self.storage, self.settings, start)
            handle = materializer.advance(handle, EpochStart(number, self.now_ms, self.run_id))
        changes = in_frames(iter(sorted(writes.items())))
        segment = make_segment(self.storage, handle, changes, number, self.inline_bytes)
        segments = handle.segments if segment is None else (*handle.segments, segment)
        made = msgspec.structs.replace(handle, epoch=number, segments=segments)
        return following(made, self.handle)

    def epoch(
        self, writes: Writes | None = None, settings: Materialization | None = None
    ) -> Handle:
        """Run an epoch and commit it."""
        writes = {} if writes is None else writes
        self.settings = settings or self.settings
        self.handle = self.attempt(writes)
        self.number += 1
        merged = {**self.state, **writes}
        self.state = {key: value for key, value in merged.items() if value is not None}
        return self.handle

    def read(self, handle: Handle | None = None) -> State:
        """Return the state at a handle, by default the committed one."""
        wanted = handle or self.handle
        with open_local_copy(self.directory, self.backend_type, self.storage, wanted) as copy:
            assert copy.backend.version() == wanted.version
            return dict(copy.backend.scan())

    def check(self) -> None:
        """Check that the state is what was written."""
        assert self.read() == self.state

    @property
    def snapshots(self) -> set[str]:
        """The ids of the snapshots on local disk."""
        return {path.name for path in self.directory.glob("snapshots/*")}

    def files(self) -> set[str]:
        """The files of base snapshots in the storage."""
        return {f"shared/{name}" for name in self.storage.list("shared")}
