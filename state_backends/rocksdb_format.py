"""The snapshot format of the RocksDB backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from state_backends.rocksdb_files import is_immutable, is_snapshot_file
from state_backends.snapshot_format import SnapshotFormat


class RocksDBFormat(SnapshotFormat):
    """SST files, which snapshots share, and the two small files that list them."""

    name = "rocksdb"
    deletes_ranges = True

    def is_file(self, name: str) -> bool:
        """Return whether `name` is the name of an SST file, the manifest or the pointer to it."""
        return is_snapshot_file(name)

    def is_immutable(self, name: str) -> bool:
        """Return whether `name` is the name of an SST file."""
        return is_immutable(name)

    def check_file(self, path: Path) -> None:
        """Read an SST file to its end and compare all of it with its checksums.

        A change in a filter alone is not found, and RocksDB ignores such a filter.
        """
        from state_backends.rocksdb import check_file

        check_file(path)

    def written_keys(self, directory: Path) -> Iterator[list[bytes]] | None:
        """Return the keys in some SST files; ``None`` if a file has deletions."""
        from state_backends.rocksdb import written_keys

        return written_keys(directory)
