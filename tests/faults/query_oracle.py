"""The content of a query's checkpoints and savepoints, and the files that they need.

Files are found and checked without the library: by every reference in what is stored.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.restore.offsets import plan_sources
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_files import place_source_logs
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stored.state import StoredState
from tests.faults.keyed_query import UIDS, KeyedQuery, Model, stored_key, subtask_of

HANDLES_KEPT = 6
"""What so many handles refer to may stay: a subtask's last one, and five that it comes from."""


def restored(path: Path, backend: str | None = None) -> Model:
    """Read the whole state of a checkpoint or savepoint, with a backend or by merging its files."""
    source = RestoreSource(str(path))
    with tempfile.TemporaryDirectory(dir=storage_parent(source.storage)) as location:
        place_source_logs(source.storage, LocalStorage(Path(location)), plan_sources(source))
    model: Model = {uid: {} for uid in UIDS}
    for operator in source.metadata.operators:
        for handle in operator.handles:
            for stored, value in _entries(source.storage, handle, backend):
                (key,) = msgspec.msgpack.decode(stored[3:])
                assert stored == stored_key(key)
                assert subtask_of(key, handle.parallelism) == handle.subtask
                assert key not in model[operator.uid], "in two subtasks"
                model[operator.uid][key] = value
    return model


def _entries(
    storage: Storage, handle: Handle, backend: str | None
) -> Iterator[tuple[bytes, bytes]]:
    with tempfile.TemporaryDirectory(dir=storage_parent(storage)) as scratch:
        if backend is not None:
            with open_local_copy(Path(scratch) / "copy", backend, storage, handle) as copy:
                yield from copy.backend.scan()
            return
        for part in StoredState(storage, handle, Path(scratch)).scan():
            yield from zip(part.keys.to_pylist(), part.values.to_pylist(), strict=True)


def storage_parent(storage: Storage) -> Path | None:
    """Return a directory in memory if the storage is."""
    return Path("/dev/shm") if storage.url.startswith(("/dev/shm", "file:///dev/shm")) else None


def files_in(thing: Any) -> dict[str, tuple[int, str]]:
    """Return the size and digest of each file that a stored structure names, at any depth."""
    if not isinstance(thing, (dict, list)):
        thing = msgspec.json.decode(msgspec.json.encode(thing))
    found: dict[str, tuple[int, str]] = {}
    if isinstance(thing, dict) and {"path", "size_bytes", "sha256"} <= thing.keys():
        found[thing["path"]] = thing["size_bytes"], thing["sha256"]
    for part in thing.values() if isinstance(thing, dict) else thing:
        if isinstance(part, (dict, list)):
            found |= files_in(part)
    return found


def check_present(root: Path, files: Mapping[str, tuple[int, str]]) -> None:
    """Check that files are as they were written, with no code of the library."""
    for path, (size_bytes, sha256) in files.items():
        content = (root / path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size_bytes, sha256), path


def tree(root: Path) -> dict[str, bytes]:
    """Return the content of all files but the executors' copies."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and "executor" not in path.parts
    }


def places_of(query: KeyedQuery) -> dict[Path, int]:
    """Return the epochs of all checkpoints and savepoints by their paths."""
    complete = {
        path: read_metadata(LocalStorage(path)).epoch for path in query.checkpoints().values()
    }
    return {**complete, **query.savepoints}


def files_of(query: KeyedQuery, number: int) -> dict[str, tuple[int, str]]:
    return files_in(read_metadata(query.storage, f"chk-{number}"))


def all_files_of(path: Path) -> set[Path]:
    metadata = read_metadata(LocalStorage(path))
    root = (path / metadata.root).resolve()
    return {path / "_metadata", *(root / relative for relative in files_in(metadata))}


def needed_next(query: KeyedQuery) -> dict[str, tuple[int, str]]:
    """Return the files of the handles that the next epoch may begin from."""
    found: dict[str, tuple[int, str]] = {}
    for handle in _next_begin_from(query):
        found |= files_in(handle)
    return found


def uploaded_of(query: KeyedQuery) -> dict[str, set[str]]:
    """Return what is uploaded of each snapshot that is pending where the next epoch may begin."""
    pending = (handle.pending for handle in _next_begin_from(query))
    there = query.state_files()
    return {
        each.snapshot_id: {path for path in there if each.snapshot_id in path}
        for each in pending
        if each is not None
    }


def _next_begin_from(query: KeyedQuery) -> list[Handle]:
    committed = [each for handles in query.handles.values() for each in handles.values()]
    losers = [each.loser for each in query.subtasks.values() if each.loser is not None]
    return [*committed, *losers]


def without_owner(query: KeyedQuery) -> set[str]:
    """Return the files that must not exist after the cleaner has run.

    Checkpoints and the next epoch need files. Also, for each subtask that the newest checkpoint
    covers there may be what was written in the epochs of its last five handles and later,
    what its last handles refer to, and the snapshots that are pending in them.
    """
    checkpoints = query.checkpoints()
    may = {path for number in checkpoints for path in files_of(query, number)}
    may |= set(needed_next(query))
    newest = read_metadata(query.storage, f"chk-{max(checkpoints)}").epoch
    pending = set()
    for subtask in query.subtasks.values():
        lines = [call.line for call in subtask.calls if call.epoch <= newest]
        line = lines[-1][-HANDLES_KEPT:] if lines else ()
        since = line[-5:][0].epoch if line else newest + 1
        may.update(*(call.written for call in subtask.calls if call.epoch >= since))
        for handle in line:
            may |= set(files_in(handle))
            pending |= {handle.pending.snapshot_id} if handle.pending else set()
    rest = query.state_files() - may
    return {path for path in rest if not any(each in path for each in pending)}


def committed_files(query: KeyedQuery) -> set[str]:
    handles = [each for handles in query.handles.values() for each in handles.values()]
    return set().union(*(files_in(each) for each in handles))


def damaged(content: bytes, how: str, bit: int) -> bytes | None:
    """Return other bytes, ``None`` for a file that is gone."""
    place = bit // 8 % len(content)
    if how == "gone":
        return None
    if how == "longer":
        return content + b"\0"
    if how == "cut":
        return content[:place]
    return content[:place] + bytes([content[place] ^ 1 << bit % 8]) + content[place + 1 :]
