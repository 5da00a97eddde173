"""The entries of a subtask whose stored keys have a prefix, without reading the others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark_ckpt.formats.change_file import decode_changes_below
from pyspark_ckpt.formats.handle import CHANGES_FORMAT, BaseSnapshot, Handle
from pyspark_ckpt.operator.durable.base_snapshot import fetch_files, open_fetched, read_base
from pyspark_ckpt.operator.durable.local_version import segment_changes
from pyspark_ckpt.storage.open import Storage
from state_backends import Changes, find_snapshot_format


def entries_with_prefix(
    storage: Storage, handle: Handle, prefix: bytes, on_step: Callable[[], None] = lambda: None
) -> Changes:
    """Return the entries of a subtask whose stored keys have a prefix, in key order.

    They must fit into memory. Segments are read whole; of a base snapshot in the files of a
    backend, only what the backend reads.

    `on_step` is called after each part that is read. What it raises ends the reading.
    """
    found: dict[bytes, bytes | None] = {}
    if handle.base is not None:
        for part in _of_base(storage, handle.base, prefix):
            found.update(_with_prefix(part, prefix))
            on_step()
    for part in segment_changes(storage, handle.segments):
        found.update(_with_prefix(part, prefix))
        on_step()
    keys = sorted(key for key, value in found.items() if value is not None)
    return Changes(keys, [found[key] for key in keys])


def _of_base(storage: Storage, base: BaseSnapshot, prefix: bytes) -> Iterator[Changes]:
    files_format = find_snapshot_format(base.format)
    if files_format is not None:
        with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-read-") as directory:
            place = Path(directory) / "files"
            fetch_files(storage, base, files_format, place, in_place=True)
            with open_fetched(place, base, read_only=True) as backend:
                entries = list(backend.scan(prefix))
        yield Changes([key for key, _ in entries], [value for _, value in entries])
    elif base.format == CHANGES_FORMAT:
        for each in base.files:
            with storage.open_verified(each.file) as file:
                yield from decode_changes_below(file, each.file.path, prefix)
    else:
        yield from read_base(storage, base)


def _with_prefix(part: Changes, prefix: bytes) -> dict[bytes, bytes | None]:
    return {
        key: value
        for key, value in zip(part.keys, part.values, strict=True)
        if key.startswith(prefix)
    }
