"""Spark's own files in a simulated ``checkpointLocation``: logs, and state stores with handles.

Spark's files are durable as soon as they have their name: losing them is not what is simulated.
A log has one entry of each number, whoever writes it first. A state store keeps the version that
was written last, as Spark's does when an epoch of a subtask runs twice.
"""

from __future__ import annotations

import json
import re

from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from tests.simulation.disk import Disk, DiskPath, _Directory, _File

_VERSION = "v1"
_NUMBERED = re.compile(r"[0-9]")  # no temporary file of the library

RETAINED = 15
"""How many entries of a log, and versions of a store, Spark keeps at least."""


class SparkFiles:
    """Writes and reads Spark's files below a path of the disk in memory.

    Parameters
    ----------
    disk
        The disk.
    path
        The ``checkpointLocation``.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def write_offsets(self, epoch: int, value: int, parallelism: int) -> bool:
        """Begin an epoch with an input, unless it has begun; return whether this call began it."""
        conf = {"spark.sql.shuffle.partitions": str(parallelism)}
        times = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf}
        offset = json.dumps({"value": value})
        if epoch <= (self.newest("offsets") or -1):
            return False  # Spark drops old entries; a driver that is so late finds the newer ones
        return self._add(f"offsets/{epoch}", f"{_VERSION}\n{json.dumps(times)}\n{offset}".encode())

    def input_of(self, epoch: int) -> int | None:
        """Return the input that an epoch began with, ``None`` if its offsets are the last ones."""
        entries = [self._read(f"offsets/{number}") for number in (epoch - 1, epoch)]
        before, value = (each and self._value(each) for each in entries)
        assert value is not None
        return None if value == before else value

    def _value(self, entry: bytes) -> int:
        return int(json.loads(entry.decode().split("\n")[2])["value"])

    def commit(self, epoch: int) -> bool:
        """Commit an epoch, unless it is committed; return whether this call committed it."""
        if epoch <= (self.newest("commits") or -1):
            return False
        text = f'{_VERSION}\n{{"nextBatchWatermarkMs": 0}}'
        is_first = self._add(f"commits/{epoch}", text.encode())
        stores = [f"state/0/{name}" for name in self._names("state/0")]
        for directory in ("offsets", "commits", *stores):
            found = self._disk.find(self._parts(directory))
            if not isinstance(found, _Directory):
                continue
            names = [name for name in found.names if _NUMBERED.match(name)]
            if len(names) > 2 * RETAINED:
                for name in sorted(names, key=_number)[:-RETAINED]:
                    del found.names[name]
                found.durable = dict(found.names)
        return is_first

    def newest(self, log: str) -> int | None:
        """Return the highest number in ``offsets`` or ``commits``."""
        return max((int(name) for name in self._names(log) if name.isdecimal()), default=None)

    def write_source_log(self) -> None:
        """Write what a source writes at its first start."""
        self._add("sources/0/0", b"0\n{}")

    def write_handle(self, subtask: int, version: int, handle: Handle) -> None:
        """Write a version of a subtask's state store, whatever was there."""
        name = f"state/0/{subtask}/{version}.delta"
        self._put(name, encode_handle(handle))

    def write_version(self, subtask: int, version: int, handle: Handle | None) -> None:
        """Write a version of the state store of a subtask without rows, as the one before."""
        content = b"" if handle is None else encode_handle(handle)
        self._put(f"state/0/{subtask}/{version}.delta", content)

    def handle(self, subtask: int, version: int) -> Handle | None:
        """Return the handle in a version of a subtask's state store, ``None`` without one."""
        content = self._version(subtask, version)
        return decode_handle(content) if content else None

    def has_version(self, subtask: int, version: int) -> bool:
        """Return whether a subtask's state store has a version, with a handle or without."""
        return self._version(subtask, version) is not None

    def _version(self, subtask: int, version: int) -> bytes | None:
        for kind in ("snapshot", "delta"):  # as HDFSBackedStateStoreProvider.loadMap
            content = self._read(f"state/0/{subtask}/{version}.{kind}")
            if content is not None:
                return content
        return None

    def _parts(self, name: str) -> tuple[str, ...]:
        return (DiskPath(self._path) / name)._parts

    def _names(self, name: str) -> list[str]:
        found = self._disk.find(self._parts(name))
        return list(found.names) if isinstance(found, _Directory) else []

    def _read(self, name: str) -> bytes | None:
        found = self._disk.find(self._parts(name))
        return found.content if isinstance(found, _File) else None

    def _add(self, name: str, content: bytes) -> bool:
        if self._read(name) is not None:
            return False
        self._put(name, content)
        return True

    def _put(self, name: str, content: bytes) -> None:
        at = self._disk.root
        *directories, last = self._parts(name)
        for part in directories:
            below = at.names.get(part)
            if below is None:
                below = at.names[part] = self._disk.new_directory()
            at.durable[part] = below
            assert isinstance(below, _Directory)
            at = below
        file = self._disk.new_file()
        file.content = file.durable = content
        at.names[last] = at.durable[last] = file


def _number(name: str) -> int:
    return int(name.partition(".")[0])
