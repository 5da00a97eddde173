"""The names of the files of a RocksDB snapshot; imports no RocksDB."""

from __future__ import annotations

import re

_SNAPSHOT_FILE = re.compile(r"[0-9]{6,20}\.sst|MANIFEST-[0-9]{6,20}|CURRENT")


def is_snapshot_file(name: str) -> bool:
    """Return whether `name` is the name of an SST file, the manifest or the pointer to it.

    A snapshot stores no options file: RocksDB opens without it, and a stored file must not decide
    how a database is opened.
    """
    return _SNAPSHOT_FILE.fullmatch(name) is not None


def is_immutable(name: str) -> bool:
    """Return whether `name` is the name of an SST file, which is never written again."""
    return name.endswith(".sst")
