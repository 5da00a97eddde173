"""Commands that only read or delete files: list, history, show, verify, dispose, rename-uid."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from typing import Any

import pandas as pd

from pyspark_ckpt.api.restoring import rename_uid
from pyspark_ckpt.cli.output import Result, facts, one_line, records, table
from pyspark_ckpt.errors import CheckpointNotFoundError, ConfigurationError
from pyspark_ckpt.formats.layout import is_savepoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import EntryStatus
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.history.frames import as_frame, entries_of, history, utc_time
from pyspark_ckpt.history.lineage import ancestors_of, description_of, lineage
from pyspark_ckpt.history.log import HistoryEntry
from pyspark_ckpt.history.places import LEVELS, find_checkpoints_directory, savepoint_entries
from pyspark_ckpt.history.records import format_of
from pyspark_ckpt.history.verification import size_on_disk_bytes, verify
from pyspark_ckpt.savepoint.dispose import dispose_savepoint
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stores.open import find_store

_OF_A_CHECKPOINT = [
    "checkpoint_id", "status", "epoch", "triggered_at", "duration_ms", "size_bytes", "files",
    "path",
]  # fmt: skip
_OF_A_SAVEPOINT = [
    "status", "epoch", "format", "triggered_at", "duration_ms", "size_bytes", "files", "path",
]  # fmt: skip
_OF_AN_ANCESTOR = ["kind", "query_id", "epoch", "found", "path"]


def list_checkpoints(arguments: Namespace) -> Result:
    """List the checkpoints of a query, or the savepoints in and below a directory."""
    directory = open_storage(arguments.path)
    has_savepoints = any(is_savepoint_name(name) for name in directory.list())
    if has_savepoints and (found := savepoint_entries(directory, LEVELS)):
        return _savepoints_result(found)
    try:
        storage = find_checkpoints_directory(arguments.path)
    except CheckpointNotFoundError:
        savepoints = savepoint_entries(directory, LEVELS)
        if not savepoints:
            raise
        return _savepoints_result(savepoints)
    with closing(find_store(storage)) as store:
        frame = as_frame(entries_of(store))[_OF_A_CHECKPOINT]
    return Result({"checkpoints": records(frame)}, table(frame, "no checkpoints"))


def _savepoints_result(savepoints: list[HistoryEntry]) -> Result:
    frame = as_frame(savepoints, _OF_A_SAVEPOINT)
    text = table(frame, "")
    begun = EntryStatus.BEGUN
    if begun in set(frame.status):
        text += f"{begun}: not complete; it is being taken, or the driver ended first\n"
    return Result({"savepoints": records(frame)}, text)


def show_history(arguments: Namespace) -> Result:
    """Show the history of a query, or the tree of forks of several queries."""
    try:
        frame = history(arguments.path)
    except CheckpointNotFoundError as exc:
        try:
            return _show_lineage(arguments.path)
        except CheckpointNotFoundError:
            raise exc from None  # the other error asks for one checkpoint
    ancestors = ancestors_of(read_origin(find_checkpoints_directory(arguments.path)))
    text = table(frame.drop(columns="phases_ms"), "no history") + _ancestors_text(ancestors)
    return Result({"history": records(frame), "ancestors": records(ancestors)}, text)


def _show_lineage(path: str) -> Result:
    """Show which queries below a directory were restored from which snapshot."""
    rows = records(lineage(path))
    lines = [
        f"{'  ' * row['generation']}{row['kind']} of query "
        f"{one_line(row['query_name'] or row['query_id'])}, epoch {row['epoch']}"
        f"{'' if row['found'] else ', not found'}: {one_line(row['path'])}\n"
        for row in rows
    ]
    return Result({"family": rows}, "".join(lines))


def show(arguments: Namespace) -> Result:
    """Show the content of a checkpoint or savepoint."""
    directory = open_storage(arguments.path)
    metadata = read_metadata(directory)
    fields = _description(metadata)
    if metadata.is_savepoint:  # a checkpoint has the size that `list` shows
        fields["size_bytes"] = size_on_disk_bytes(directory, metadata)
        fields["format"] = format_of(metadata)
    ancestors = lineage(arguments.path).iloc[1:]
    text = facts(_readable(fields))
    for operator in fields["operators"]:
        states = ", ".join(f"{state['name']} ({state['kind']})" for state in operator["states"])
        text += (
            f"operator {one_line(operator['uid'])}: {one_line(operator['processor'])}, parallelism "
            f"{operator['parallelism']} of {operator['max_parallelism']}, states: "
            f"{one_line(states or 'none')}\n"
        )
    text += "".join(f"Spark operator: {one_line(name)}\n" for name in fields["spark_operators"])
    return Result({**fields, "ancestors": records(ancestors)}, text + _ancestors_text(ancestors))


def verify_files(arguments: Namespace) -> Result:
    """Check all files of a checkpoint or savepoint."""
    found = verify(arguments.path)
    fields = {
        "path": found.path,
        "kind": found.kind,
        "epoch": found.epoch,
        "files": found.files,
        "size_bytes": found.size_bytes,
    }
    text = f"{found.path}: {found.files} files, {found.size_bytes} bytes, all intact\n"
    return Result(fields, text)


def dispose(arguments: Namespace) -> Result:
    """Delete a savepoint."""
    gone = dispose_savepoint(arguments.path)
    what = "" if gone.was_complete else "an incomplete savepoint, "
    text = f"{gone.path}: {what}{gone.files} files deleted\n"
    if gone.left:
        text += f"not part of the savepoint, kept: {one_line(', '.join(gone.left))}\n"
    fields = {
        "path": gone.path,
        "files": gone.files,
        "left": list(gone.left),
        "was_complete": gone.was_complete,
    }
    return Result(fields, text)


def rename_uids(arguments: Namespace) -> Result:
    """Write a copy of a savepoint in which operators have other uids."""
    old = [before for before, _ in arguments.uids]
    twice = sorted({uid for uid in old if old.count(uid) > 1})
    if twice:
        raise ConfigurationError(f"{', '.join(twice)} is renamed twice: give each uid one new uid")
    made = rename_uid(arguments.path, dict(arguments.uids), arguments.directory)
    fields = {
        "path": made.path,
        "epoch": made.epoch,
        "size_bytes": made.size_bytes,
        "files": made.files,
    }
    return Result(fields, facts(fields))


def _ancestors_text(ancestors: pd.DataFrame) -> str:
    if ancestors.empty:
        return ""
    return "restored from:\n" + table(ancestors[_OF_AN_ANCESTOR], "")


def _readable(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for the text: without operators, and with a readable time."""
    completed_at = utc_time(fields["completed_at_ms"])
    shown = {}
    if not pd.isna(completed_at):  # else the number is all that can be said
        shown["completed_at_ms"] = "completed_at", f"{completed_at:%Y-%m-%d %H:%M:%SZ}"
    operators = ("operators", "spark_operators")
    kept = (
        shown.get(name, (name, value)) for name, value in fields.items() if name not in operators
    )
    return dict(kept)


def _description(metadata: CheckpointMetadata) -> dict[str, Any]:
    return {
        "kind": metadata.kind,
        "checkpoint_id": metadata.checkpoint_id,
        "epoch": metadata.epoch,
        "query_id": metadata.query_id,
        "query_name": metadata.query_name,
        "watermark_ms": metadata.watermark_ms,
        "completed_at_ms": metadata.completed_at_ms,
        "size_bytes": metadata.size_bytes,
        "files": len({reference.path for reference in metadata.files()}) + 1,
        "spark_version": metadata.spark_version,
        "library_version": metadata.library_version,
        "operators": [_operator(operator) for operator in metadata.operators],
        "spark_operators": [operator.name for operator in metadata.spark_operators],
    }


def _operator(operator: OperatorMetadata) -> dict[str, Any]:
    states = {
        state.name: {"name": state.name, "kind": state.kind, "schema": state.value_schema}
        for handle in operator.handles
        for state in handle.states
        if state.sweeps is None
    }
    return {
        "uid": operator.uid,
        **description_of(operator),
        "base_formats": sorted(
            {handle.base.format for handle in operator.handles if handle.base is not None}
        ),
        "states": list(states.values()),
    }
