"""Names of the files that a snapshot of RocksDB consists of; needs no RocksDB."""

from __future__ import annotations

import re

_SNAPSHOT_FILE = re.compile(r"[0-9]{6,20}\.sst|MANIFEST-[0-9]{6,20}|CURRENT")


def is_snapshot_file(name: str) -> bool:
    """Tell whether `name` may be one of a snapshot's files; options and configurations are none.

    Those are not needed to open it, and what they say must not come from a stored file.
    """
    return _SNAPSHOT_FILE.fullmatch(name) is not None


def is_immutable(name: str) -> bool:
    """Tell whether a snapshot's file is never written again, so that it may be hard-linked."""
    return name.endswith(".sst")
