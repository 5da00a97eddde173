"""The parts of a capture, read, checked and put into order."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from pyspark_ckpt.errors import CheckpointNotFoundError, HarnessUseError
from pyspark_ckpt.formats.change_file import decode_changes
from pyspark_ckpt.operator.capture.capture_file import (
    CapturedEpoch,
    CapturePart,
    SectionName,
    decode_parts,
)
from pyspark_ckpt.operator.capture.orders import newest_captures
from pyspark_ckpt.operator.capture.recording import KEY_COLUMN, STEP_COLUMN
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.table.keys import StoredKey
from pyspark_ckpt.operator.table.stored_keys import KEY_GROUP_BYTES
from pyspark_ckpt.storage.base import corrupt_file
from pyspark_ckpt.storage.open import open_storage

_TO_DO = "capture the epochs again"


class ReadPart:
    """One epoch of a subtask as it was captured."""

    def __init__(self, part: CapturePart, name: str) -> None:
        self.epoch: CapturedEpoch = part.epoch
        self._sections = part.sections
        self._name = f"{name}, {part.epoch.what}"

    def touched(self) -> list[StoredKey]:
        """Return the keys that the epoch worked on."""
        keys = self._entries(SectionName.KEYS)
        return [(key[:KEY_GROUP_BYTES], key[KEY_GROUP_BYTES:]) for key in keys]

    def before(self) -> dict[bytes, bytes]:
        """Return the state of these keys before the epoch, and the state of no key."""
        entries = self._entries(SectionName.BEFORE)
        return {key: value for key, value in entries.items() if value is not None}

    def writes(self) -> Mapping[bytes, bytes | None]:
        """Return what the epoch wrote; ``None`` for a delete."""
        return self._entries(SectionName.AFTER)

    def rows(self) -> list[SentRows]:
        """Return the keyed rows in the parts in which the processor got them."""
        batches = iter(self._batches(SectionName.ROWS))
        parts = [[batch for _, batch in zip(range(n), batches)] for n in self.epoch.batches]  # noqa: B905
        if tuple(map(len, parts)) != self.epoch.batches or next(batches, None) is not None:
            raise corrupt_file(self._name, "its rows are not as many as it says", _TO_DO)
        return parts

    def broadcast(self) -> SentRows:
        """Return the broadcast rows."""
        return self._batches(SectionName.BROADCAST)

    def output(self) -> SentRows:
        """Return the output."""
        batches = self._batches(SectionName.OUTPUT)
        if batches and not {STEP_COLUMN, KEY_COLUMN} <= set(batches[0].schema.names):
            raise corrupt_file(self._name, "its output lacks columns", _TO_DO)
        return batches

    def _entries(self, section: SectionName) -> dict[bytes, bytes | None]:
        data = self._sections.get(section)
        if data is None:
            return {}
        entries: dict[bytes, bytes | None] = {}
        for part in decode_changes(io.BytesIO(data), f"{self._name}, {section}"):
            entries.update(zip(part.keys, part.values, strict=True))
        return entries

    def _batches(self, section: SectionName) -> SentRows:
        data = self._sections.get(section)
        if data is None:
            return []
        try:
            with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
                batches = list(reader)
            for batch in batches:
                batch.validate(full=True)
        except pa.ArrowException as exc:
            raise corrupt_file(self._name, f"{section} cannot be read ({exc})", _TO_DO) from exc
        return batches


def read_parts(file: str | Path, uid: str | None) -> list[ReadPart]:
    """Return the parts of one operator in a capture file, in the order of epochs and subtasks.

    Of an epoch the newest run counts, and of a subtask the newest attempt of that run.

    `uid` may be ``None`` only if the file has one operator. ``HarnessUseError`` is raised also if
    an epoch was too large to be captured.
    """
    name = str(file)
    stored = list(decode_parts(io.BytesIO(_content(name)), name))
    newest = newest_captures({place: part.epoch for place, part in enumerate(stored)})
    parts = list(_of_operator([ReadPart(stored[place], name) for place in newest], uid, name))
    for part in parts:
        if part.epoch.left_out is not None:
            raise HarnessUseError(f"{name}, {part.epoch.what}: {part.epoch.left_out}")
    return sorted(parts, key=lambda part: (part.epoch.epoch, part.epoch.subtask))


def _of_operator(parts: Collection[ReadPart], uid: str | None, name: str) -> Iterator[ReadPart]:
    known = sorted({part.epoch.uid for part in parts})
    if uid is None and len(known) > 1:
        raise HarnessUseError(f"{name} has captures of the operators {known}: give uid")
    wanted = known[0] if uid is None else uid
    if wanted not in known:
        raise HarnessUseError(f"{name} has no capture of operator {uid!r}: it has {known}")
    return (part for part in parts if part.epoch.uid == wanted)


def _content(path: str) -> bytes:
    directory, slash, name = path.rpartition("/")
    storage = open_storage(directory or slash or ".")
    try:
        return b"".join(storage.chunks(name))
    except (FileNotFoundError, IsADirectoryError) as exc:
        raise CheckpointNotFoundError(
            f"{path} is not a capture: make one with location(path).capture(epochs).save(path)"
        ) from exc
