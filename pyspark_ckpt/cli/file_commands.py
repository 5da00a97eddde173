"""Commands of files: list, history, lineage, show, verify, dispose, rename-uid."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pandas as pd

from pyspark_ckpt.api.location import location
from pyspark_ckpt.cli.output import Result, facts, one_line, records, table
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.formats.modes import EntryKind, EntryStatus
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.history.frames import utc_time
from pyspark_ckpt.history.lineage import ancestors_of
from pyspark_ckpt.history.places import after_rollback, find_checkpoints_directory

_OF_A_CHECKPOINT = [
    "checkpoint_id", "status", "epoch", "triggered_at", "duration_ms", "size_bytes", "files",
    "path",
]  # fmt: skip
_OF_A_SAVEPOINT = [
    "status", "epoch", "format", "triggered_at", "duration_ms", "size_bytes", "files", "path",
]  # fmt: skip
_OF_AN_ANCESTOR = ["kind", "query_id", "epoch", "found", "path"]


def list_stored(arguments: Namespace) -> Result:
    """List the checkpoints of a query, or the savepoints in and below a directory."""
    found = location(arguments.path).list()
    if EntryKind.SAVEPOINT.value not in set(found["kind"]):
        frame = found[_OF_A_CHECKPOINT]
        empty = f"no checkpoints{after_rollback(arguments.path)}" if frame.empty else ""
        return Result({"checkpoints": records(frame)}, table(frame, empty))
    frame = found[_OF_A_SAVEPOINT]
    text = table(frame, "")
    begun = EntryStatus.BEGUN
    if begun in set(frame.status):
        text += f"{begun}: not complete; it is being taken, or the driver ended first\n"
    return Result({"savepoints": records(frame)}, text)


def show_history(arguments: Namespace) -> Result:
    """Show the history of a query."""
    frame = location(arguments.path).history()
    ancestors = ancestors_of(read_origin(find_checkpoints_directory(arguments.path)))
    text = table(frame.drop(columns="phases_ms"), "no history") + _ancestors_text(ancestors)
    return Result({"history": records(frame), "ancestors": records(ancestors)}, text)


def show_lineage(arguments: Namespace) -> Result:
    """Show the ancestors of a snapshot, or the tree of the queries below a directory."""
    rows = records(location(arguments.path).lineage())
    lines = [
        f"{'  ' * row['generation']}{row['kind']} of query "
        f"{one_line(row['query_name'] or row['query_id'])}, epoch {row['epoch']}"
        f"{'' if row['found'] else ', not found'}: {one_line(row['path'])}\n"
        for row in rows
    ]
    return Result({"lineage": rows}, "".join(lines))


def show(arguments: Namespace) -> Result:
    """Show the content of a checkpoint or savepoint."""
    stored = location(arguments.path)
    fields = stored.show()
    ancestors = stored.lineage().iloc[1:]
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
    found = location(arguments.path).verify()
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
    gone = location(arguments.path).dispose()
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
    made = location(arguments.path).rename_uid(dict(arguments.uids), arguments.directory)
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
