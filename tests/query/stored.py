"""The content of the files of a checkpoint or savepoint, read without the library's operators."""

from __future__ import annotations

import io
from pathlib import Path

from pyspark_ckpt.formats.change_file import decode_changes
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.operator.durable.stored_files import read_base
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES, is_keyed, state_id_of
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.storage.open import Storage

Entries = dict[bytes, bytes]


def metadata_of(path: str | Path) -> CheckpointMetadata:
    return RestoreSource(str(path)).metadata


def handles_of(path: str | Path, uid: str = "op") -> tuple[Handle, ...]:
    """Return the handles of an operator, by subtask."""
    (operator,) = (o for o in metadata_of(path).operators if o.uid == uid)
    return operator.handles


def entries_of_states(path: str | Path, uid: str = "op") -> dict[str, Entries]:
    """Return the stored entries of each keyed state by name, and of timers as ``(timers)``."""
    source = RestoreSource(str(path))
    found: dict[str, Entries] = {}
    for handle in handles_of(path, uid):
        for key, value in _entries(source.storage, handle).items():
            if is_keyed(key):
                state_id = state_id_of(key)
                is_timer = state_id == MAX_STATES
                name = "(timers)" if is_timer else handle.states[state_id].name
                found.setdefault(name, {})[key] = value
    return found


def _entries(storage: Storage, handle: Handle) -> Entries:
    """Return the entries of base snapshot and segments of a subtask, with deletes applied."""
    entries: dict[bytes, bytes | None] = {}
    for changes in () if handle.base is None else read_base(storage, handle.base):
        entries.update(zip(changes.keys, changes.values, strict=True))
    for segment in handle.segments:
        content = segment.inline if segment.file is None else storage.read(segment.file.path)
        for changes in decode_changes(io.BytesIO(content), "the test"):
            entries.update(zip(changes.keys, changes.values, strict=True))
    return {key: value for key, value in entries.items() if value is not None}
