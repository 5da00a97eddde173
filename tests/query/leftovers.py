"""Which files of a checkpoints directory nothing needs.

An oracle for the cleaner, without any of its code. It reads the JSON of each ``_metadata`` and
parses file names by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

_PREDECESSORS = 5
_HEADER_BYTES = 8 + 4 + 8 + 32  # magic, version, length, digest
_NAME = re.compile(r"\.?(?:base|segment)-(?:([0-9a-f]{12})-)?(\d+)-(\d+)-.*")


def metadata_json(checkpoint: str | Path) -> dict[str, Any]:
    """Return the content of a ``_metadata`` file."""
    data = (Path(checkpoint) / "_metadata").read_bytes()
    found: dict[str, Any] = json.loads(data[_HEADER_BYTES:])
    return found


def leftovers(checkpoints: Path) -> set[str]:
    """Return data files that no complete checkpoint refers to and no attempt may use again.

    What may come back is what the attempts of a subtask's last epochs wrote, what the last versions
    before its newest one referred to, and a base snapshot that is on its way.
    """
    found = [path.parent for path in checkpoints.glob("chk-*/_metadata")]
    newest = max(found, key=lambda path: int(path.name.removeprefix("chk-")))
    kept = {path for each in found for path in paths_in(metadata_json(each))}
    handles = [
        handle for operator in metadata_json(newest)["operators"] for handle in operator["handles"]
    ]
    for handle in handles:
        for before in handle.get("predecessors", []):
            kept.update(before["files"])
    return {
        path
        for directory in ("shared", "taskowned")
        for file in (checkpoints / directory).glob("*")
        if (path := f"{directory}/{file.name}") not in kept
        and not any(may_come_back_to(handle, file.name) for handle in handles)
    }


def may_come_back_to(handle: dict[str, Any], name: str) -> bool:
    """Return whether an attempt that starts from a handle or from its twin may need a file."""
    before = handle.get("predecessors", [])
    on_their_way = [each["pending"] for each in before]
    on_their_way += [(handle["pending"] or {}).get("snapshot_id")]
    if any(snapshot and f"-{snapshot}-" in name for snapshot in on_their_way):
        return True
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]) != handle["subtask"]:
        return False
    mark = hashlib.sha256(handle["uid"].encode()).hexdigest()[:12]
    first = int(len(before) == _PREDECESSORS)  # the oldest is where both attempts started
    since = before[first]["epoch"] if before else handle["epoch"]
    return match[1] in (None, mark) and int(match[3]) >= since


def paths_in(part: Any) -> set[str]:
    """Return every value under the key `path`, at any depth."""
    if isinstance(part, list):
        return set().union(*map(paths_in, part))
    if not isinstance(part, dict):
        return set()
    own = {part["path"]} if "path" in part else set()
    return own.union(*map(paths_in, part.values()))
