"""A subtask's state from epoch to epoch, as a task drives it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import types as T

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.removal import sweep
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.table.writes import DEFAULT_LIMIT_BYTES, EpochWrites
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.values.codec import key_encoder
from state_backends import Changes, StateBackend, open_backend

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""For tests of long histories that are not about disks."""

SPILLS_ALWAYS = 1
LIMITS = [SPILLS_ALWAYS, DEFAULT_LIMIT_BYTES]

NUMBER = T.StructType([T.StructField("n", T.LongType())])
TEXT = T.StructType([T.StructField("s", T.StringType())])
BOTH = T.StructType([*NUMBER.fields, *TEXT.fields])

_encode = key_encoder()
USER_KEYS = [("a",), ("ab",), (b"a", 1), (None,), (1,)]
KEYS = sorted(
    (encode_key_group(group), _encode(key))
    for group, key in zip([0, 0, 0, 1, 255], USER_KEYS, strict=True)
)
"""Key group and encoded key, in the order of stored keys."""


class SubtaskEpochs:
    """A subtask over epochs: each applies its changes to the backend and passes its states on.

    Parameters
    ----------
    backend
        The subtask's backend.
    limit_bytes
        Memory that an epoch's writes may take.
    directory
        Where writes beyond the limit go.
    """

    def __init__(self, backend: StateBackend, limit_bytes: int, directory: Path) -> None:
        self.backend = backend
        self.limit_bytes = limit_bytes
        self.directory = directory
        self.states: tuple[StateDescriptor, ...] = ()
        self.sweep_from = b""
        self.number = 0
        self.table: Any = None
        self.clock = EpochClock(TimeMode.PROCESSING_TIME, 1_000_000, 1_000_000)

    def set_time(self, time_ms: int, mode: TimeMode = TimeMode.PROCESSING_TIME) -> None:
        """Set both times of the epochs that follow."""
        self.clock = EpochClock(mode, time_ms, time_ms)

    def begin(
        self,
        migrations: Mapping[str, Migration] | None = None,
        keys: Sequence[tuple[bytes, bytes]] = KEYS,
    ) -> ProcessorHandle:
        """Begin an epoch at its first key; return the handle that ``init`` gets."""
        self.keys = keys
        self.writes = EpochWrites(self.limit_bytes, self.directory)
        self.table = StateTable(self.backend, keys, self.writes)
        self.handle = ProcessorHandle(
            self.table, self.clock, "operator 'u'", self.states, {}, migrations
        )
        self.to_key(0)
        return self.handle

    def to_key(self, position: int, event_time_ms: int | None = None) -> None:
        """Enter another key."""
        current = self.table.current
        current.key_group, current.key = self.keys[position]
        current.position, current.event_time_ms = position, event_time_ms

    def leave_key(self) -> None:
        """Leave the current key, as in ``init``."""
        self.table.current.leave()

    def end(self) -> list[Changes]:
        """End the epoch and return its changes."""
        swept = sweep(self.table, self.handle.descriptors, self.handle.aging, self.sweep_from)
        changes = list(self.table.changes())
        self.number += 1
        self.backend.apply(changes, str(self.number))
        self.states, self.sweep_from = swept.states, swept.sweep_from
        self.drop()
        return changes

    def close(self) -> None:
        """Remove what an epoch that a test left open has on disk."""
        if self.table is not None:
            self.table.close()

    def drop(self) -> None:
        """Abandon the epoch, as a failed attempt does."""
        self.table.close()
        assert list(self.directory.iterdir()) == [], "nothing of an epoch stays on disk"

    def entries(self) -> dict[bytes, bytes]:
        """Return all stored entries."""
        return dict(self.backend.scan())


@contextmanager
def heap_epochs(directory: Path) -> Iterator[SubtaskEpochs]:
    """Yield a subtask on the heap backend in an empty directory."""
    writes = directory / "writes"
    writes.mkdir()
    with open_backend("heap", directory / "state", create=True) as backend:
        yield SubtaskEpochs(backend, DEFAULT_LIMIT_BYTES, writes)
