"""A savepoint of one operator, whose states a test fills as a processor does."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.formats.canonical_file import encode_canonical
from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import (
    CANONICAL_FORMAT,
    BaseFile,
    BaseSnapshot,
    Handle,
    Segment,
    StateDescriptor,
)
from pyspark_ckpt.formats.layout import METADATA_NAME, canonical_path, segment_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind, TimeMode
from pyspark_ckpt.operator.rows.keys import KeyPlaces, subtask_of
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.table.writes import DEFAULT_LIMIT_BYTES
from pyspark_ckpt.storage.open import LocalStorage
from state_backends import Changes, open_backend
from tests.unit.operator.subtask_epochs import SubtaskEpochs

MAX_PARALLELISM = 128
TIME_MS = 1_000_000
UID = "op"
Key = tuple[Any, ...]


class MadeSavepoint:
    """Subtasks over epochs, and a savepoint of them.

    Parameters
    ----------
    directory
        An empty directory.
    key_schema
        The key columns.
    keys
        The keys, all different.
    parallelism
        The number of subtasks.
    """

    def __init__(
        self, directory: Path, key_schema: T.StructType, keys: Sequence[Key], parallelism: int = 2
    ) -> None:
        self.directory = directory
        self.key_schema = key_schema
        self.parallelism = parallelism
        places = KeyPlaces(key_schema, MAX_PARALLELISM)
        stored = {places.place(key): key for key in keys}
        assert len(stored) == len(keys), "two keys are the same key"
        self.keys: list[list[Key]] = [[] for _ in range(parallelism)]
        self._stored: list[list[tuple[bytes, bytes]]] = [[] for _ in range(parallelism)]
        for (key_group, encoded), key in sorted(stored.items(), key=lambda item: item[0]):
            subtask = subtask_of(key_group, parallelism, MAX_PARALLELISM)
            self.keys[subtask].append(key)
            self._stored[subtask].append((encode_key_group(key_group), encoded))
        self.subtasks = []
        for subtask in range(parallelism):
            place = directory / str(subtask)
            (place / "spill").mkdir(parents=True)
            backend = open_backend("heap", place / "heap", create=True)
            backend.load((), "empty")
            self.subtasks.append(SubtaskEpochs(backend, DEFAULT_LIMIT_BYTES, place / "spill"))
        self.time_ms = TIME_MS
        self.saved_at_ms: int | None = None
        """The time of the savepoint's epoch, if it is not that of its watermark."""
        self.time_mode = TimeMode.PROCESSING_TIME

    def epoch(
        self,
        init: Callable[[ProcessorHandle], dict[str, Any]],
        work: Callable[[dict[str, Any], Key], None],
        subtasks: Sequence[int] | None = None,
        outside: Callable[[dict[str, Any], int], None] = lambda _states, _subtask: None,
    ) -> None:
        """Run an epoch: `init` in each subtask, `outside` a key, then `work` for each key."""
        for number in range(self.parallelism) if subtasks is None else subtasks:
            subtask = self.subtasks[number]
            subtask.set_time(self.time_ms, self.time_mode)
            if not self._stored[number]:
                continue
            handle = subtask.begin(keys=self._stored[number])
            subtask.leave_key()
            states = init(handle)
            outside(states, number)
            for position, key in enumerate(self.keys[number]):
                subtask.to_key(position)
                work(states, key)
            subtask.leave_key()
            subtask.end()

    def save(self, name: str, *, canonical: bool) -> str:
        """Write a savepoint of the subtasks as they are; return its path."""
        storage = LocalStorage(self.directory / name)
        operator = OperatorMetadata(
            operator_id=0,
            uid=UID,
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            key_schema=self.key_schema.json(),
            time_mode=self.time_mode,
            backend="heap",
            handles=tuple(
                self._stored_as(storage, number, canonical=canonical)
                for number in range(self.parallelism)
                if self._stored[number]
            ),
        )
        at_ms = self.time_ms if self.saved_at_ms is None else self.saved_at_ms
        times = f'{{"batchWatermarkMs":{self.time_ms},"batchTimestampMs":{at_ms}}}'
        metadata = CheckpointMetadata(
            checkpoint_id=None,
            kind=CheckpointKind.SAVEPOINT,
            root=".",
            epoch=7,
            query_id="0123456789",
            query_name="made",
            parent=None,
            spark_version="4.3.0",
            library_version="0.1.0",
            triggered_at_ms=1,
            completed_at_ms=2,
            watermark_ms=self.time_ms,
            offsets_entry=f"v1\n{times}\n0",
            commits_entry="v1\n{}",
            source_logs=(),
            operators=(operator,),
        )
        storage.write(METADATA_NAME, [encode_metadata(metadata)])
        return str(self.directory / name)

    def _stored_as(self, storage: LocalStorage, number: int, *, canonical: bool) -> Handle:
        subtask = self.subtasks[number]
        entries = list(subtask.backend.scan())
        changes = Changes([key for key, _ in entries], [value for _, value in entries])
        handle = Handle(
            query_id="0123456789",
            uid=UID,
            subtask=number,
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            epoch=subtask.number,
            key_schema=self.key_schema.json(),
            states=subtask.states,
            time_mode=self.time_mode,
        )
        if not canonical:
            file = storage.write(segment_path(UID, number, 7), encode_changes([changes]))
            segment = Segment("7-s", 7, len(changes), file.size_bytes, file=file)
            return msgspec.structs.replace(handle, segments=(segment,))
        path = canonical_path(number, 7, "0" * 16)
        file = storage.write(path, encode_canonical(handle, [changes] if entries else []))
        version = uuid.uuid4().hex  # as in a run: entries of equal ones count as equal
        base = BaseSnapshot(
            version, 7, len(changes), (BaseFile("state.parquet", file),), CANONICAL_FORMAT
        )
        return msgspec.structs.replace(handle, base=base)

    def states(self, number: int) -> tuple[StateDescriptor, ...]:
        """Return the states of a subtask."""
        return self.subtasks[number].states

    def close(self) -> None:
        """Close the backends."""
        for subtask in self.subtasks:
            subtask.backend.close()
