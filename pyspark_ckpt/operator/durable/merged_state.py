"""All state of a handle in key order, from its base snapshot and segments, in bounded memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from operator import lt
from pathlib import Path

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable.base_snapshot import read_base
from pyspark_ckpt.operator.durable.local_copy import segment_changes
from pyspark_ckpt.operator.table.writes import EpochWrites
from pyspark_ckpt.storage.open import Storage
from state_backends import Changes, find_snapshot_format

_FEW = 4
"""Writes to fewer than one in four entries are put in one by one."""

_MEMORY_BYTES = 16 << 20
"""Memory for the writes of the segments; more go to disk. More memory is not faster."""


def merged_state(
    storage: Storage,
    handle: Handle,
    scratch: Path,
    on_step: Callable[[], None] = lambda: None,
) -> Generator[Changes, None, None]:
    """Yield all state that a handle names, without deletes.

    Called by a task on an executor. A base snapshot of any format is in key order, so its
    parts are passed on as they are where no segment wrote between their keys.

    All segments are read before the first part is yielded. `on_step` is called after each part of a
    segment, and an error that it raises ends the reading. `scratch` is used for the length of the
    iteration.
    """
    writes = EpochWrites(_MEMORY_BYTES, scratch)
    try:
        for part in segment_changes(storage, handle.segments):
            for key, value in zip(part.keys, part.values, strict=True):
                writes.add(key, value)
            on_step()
        base = iter(()) if handle.base is None else read_base(storage, handle.base, scratch)
        if handle.base is not None and find_snapshot_format(handle.base.format) is None:
            base = _in_order(base, handle)  # a backend scans in order
        yield from _merge(base, writes.all_in_order())
    finally:
        writes.close()


def _in_order(base: Iterator[Changes], handle: Handle) -> Iterator[Changes]:
    last: bytes | None = None
    for part in base:
        if not part.keys:
            continue
        follows = last is None or last < part.keys[0]
        if not follows or not all(map(lt, part.keys, islice(part.keys, 1, None))):
            raise CorruptFileError(
                f"the base snapshot of operator {handle.uid!r}, subtask {handle.subtask} is not in "
                "key order; restore from another checkpoint"
            )
        last = part.keys[-1]
        yield part


def _merge(base: Iterator[Changes], writes: Iterator[Changes]) -> Iterator[Changes]:
    """Merge two streams in key order; where both have a key, the second one counts."""
    pending: dict[bytes, bytes | None] = {}
    highest = b""
    for part in base:
        while highest <= part.keys[-1] and (written := next(writes, None)) is not None:
            pending.update(zip(written.keys, written.values, strict=True))
            highest = written.keys[-1]
        if not pending:
            yield part
            continue
        last = part.keys[-1]
        due = [key for key in pending if key <= last]
        if not due:
            yield part
            continue
        yield from _overlay(part, {key: pending.pop(key) for key in due})
    yield from _puts(pending)
    for written in writes:
        yield from _puts(dict(zip(written.keys, written.values, strict=True)))


def _overlay(part: Changes, writes: dict[bytes, bytes | None]) -> Iterator[Changes]:
    """Put the writes into a part that is in key order; what lies between them moves as slices."""
    if len(writes) > len(part) // _FEW:
        yield from _puts({**dict(zip(part.keys, part.values, strict=True)), **writes})
        return
    keys: list[bytes] = []
    values: list[bytes | None] = []
    taken = 0
    for key in sorted(writes):
        place = bisect_left(part.keys, key, taken)
        keys += part.keys[taken:place]
        values += part.values[taken:place]
        taken = place + (place < len(part) and part.keys[place] == key)
        if writes[key] is not None:
            keys.append(key)
            values.append(writes[key])
    keys += part.keys[taken:]
    values += part.values[taken:]
    if keys:
        yield Changes(keys, values)


def _puts(state: dict[bytes, bytes | None]) -> Iterator[Changes]:
    keys = sorted(key for key, value in state.items() if value is not None)
    if keys:
        yield Changes(keys, [state[key] for key in keys])
