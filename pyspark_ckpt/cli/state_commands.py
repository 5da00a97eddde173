"""The commands that read states of checkpoints and savepoints: ``state`` and ``diff``."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_ckpt.api.location import location
from pyspark_ckpt.cli.output import (
    Result,
    check_can_write,
    facts,
    json_text,
    records,
    table,
    whole_file,
)
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.snapshot.columns import python_rows
from pyspark_ckpt.snapshot.snapshot import Snapshot
from pyspark_ckpt.snapshot.views import StateView, TableView
from pyspark_ckpt.text_table import text_table

FORMATS = ("table", "json", "csv", "parquet")
TABLE_LIMIT = 20
"""Rows that are shown as text unless the user says how many."""

_NULL = "-"
_QUOTED_IN_CSV = re.compile(r'[",\r\n]|^$')
logger = library_logger(__name__)

Row = dict[str, Any]


def wrong_arguments_of_state(arguments: Namespace) -> str | None:
    """Return what is wrong with the arguments of ``state`` together, ``None`` if nothing is."""
    of_rows = {
        "--key": bool(arguments.key),
        "--limit": arguments.limit is not None,
        "--format": arguments.format is not None,
        "--output": arguments.output is not None,
    }
    given = [name for name, is_given in of_rows.items() if is_given]
    if arguments.timers and arguments.state is not None:
        return "--state and --timers are two tables: give one of them"
    if arguments.timers and arguments.key:
        return "--key is for a state: give --state, not --timers"
    if given and arguments.state is None and not arguments.timers:
        return (
            f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for rows: give --state NAME"
        )
    if arguments.json and (arguments.format is not None or arguments.output is not None):
        return "--json prints one JSON object; use --format json to get one for each row"
    if arguments.format == "parquet" and arguments.output is None:
        return "parquet goes into a file: give --output FILE"
    return None


def state(arguments: Namespace) -> Result:
    """Show the states of a checkpoint or savepoint, or the rows of one of them."""
    if arguments.output is not None:
        check_can_write("--output", Path(arguments.output))
    with ExitStack() as opened:
        snapshot = opened.enter_context(location(arguments.path).state())
        if arguments.state is None and not arguments.timers:
            return _states_result(snapshot, arguments.operator)
        view = _view(snapshot, arguments)
        if arguments.key and isinstance(view, StateView):
            return _rows_result(view.schema, iter(_of_one_key(view, arguments.key)), arguments)
        if arguments.format == "parquet":
            return _as_parquet(view, arguments)
        result = _rows_result(view.schema, _rows(view.to_arrow()), arguments)
        # The parts are read while they are printed.
        return replace(result, parts=_followed_by(result.parts, opened.pop_all().close))


def diff(arguments: Namespace) -> Result:
    """Compare two snapshots; the result is negative if they differ."""
    difference = location(arguments.old).diff(arguments.new)
    counts = difference.counts
    samples = difference.samples(arguments.limit)
    text = table(counts, "no states")
    for (operator, name), rows in samples.items():
        if rows:  # the user may want none
            text += f"\n{operator}, {name}:\n{_text_of(list(rows[0]), rows)}"
    fields = {
        "is_equal": difference.is_equal,
        "counts": records(counts),
        "samples": [
            {"operator": operator, "state": name, "changes": plain(rows)}
            for (operator, name), rows in samples.items()
        ],
    }
    return Result(fields, text, is_done=difference.is_equal)


def _followed_by(parts: Iterable[str], close: Callable[[], None]) -> Iterator[str]:
    try:
        yield from parts
    finally:
        close()


def _states_result(snapshot: Snapshot, operator: str | None) -> Result:
    frame = snapshot.states()
    if operator is not None:
        if operator not in snapshot.operators:
            raise ConfigurationError(
                f"{snapshot.path} has no operator {operator!r}; it has "
                f"{', '.join(map(repr, snapshot.operators))}"
            )
        frame = frame.loc[frame["operator"] == operator]
    fields = {
        "path": snapshot.path,
        "kind": snapshot.kind,
        "query_id": snapshot.query_id,
        "query_name": snapshot.query_name,
        "epoch": snapshot.epoch,
        "watermark_ms": snapshot.watermark_ms,
        "offsets": {str(number): offset for number, offset in snapshot.offsets.items()},
    }
    text = facts(fields) + table(frame, "no states")
    return Result({**fields, "states": records(frame)}, text)


def _view(snapshot: Snapshot, arguments: Namespace) -> TableView:
    operator = arguments.operator
    if operator is None:
        operator = only_operator(snapshot, arguments.state)
    return (
        snapshot.timers(operator) if arguments.timers else snapshot.state(operator, arguments.state)
    )


def only_operator(snapshot: Snapshot, name: str | None) -> str:
    """Return the uid of the only operator, or of the only one that has a state."""
    frame = snapshot.states()
    found = list(snapshot.operators)
    if name is not None:
        found = frame.loc[frame["state"] == name, "operator"].tolist() or found
    if len(found) != 1:
        raise ConfigurationError(
            f"{snapshot.path} has the operators {', '.join(map(repr, snapshot.operators))}: say "
            "which one with --operator"
        )
    return str(found[0])


def _of_one_key(view: StateView, texts: Sequence[str | None]) -> list[Row]:
    key = key_of(view, texts)
    found = view.get(*key)
    rows = [] if found is None else found if isinstance(found, list) else [found]
    columns = dict(zip([field.name for field in view.key_fields], key, strict=True))
    if not rows:
        named = ", ".join(f"{name} {json_text(plain(value))}" for name, value in columns.items())
        logger.warning("no entry for key (%s)", named)
    return [{**columns, **row} for row in rows]


def key_of(view: StateView, texts: Sequence[str | None]) -> tuple[Any, ...]:
    """Return a key from the text of each of its columns, ``None`` for a null."""
    fields = view.key_fields
    if len(texts) != len(fields):
        raise ConfigurationError(
            f"the key has {len(fields)} columns ({', '.join(field.name for field in fields)}): "
            "give --key or --null-key once for each, in this order"
        )
    return tuple(_key_value(field, text) for field, text in zip(fields, texts, strict=True))


def _key_value(field: pa.Field, text: str | None) -> Any:
    if text is None:
        return None
    try:
        if field.type == pa.binary():
            return bytes.fromhex(text)
        return pa.array([text], pa.string()).cast(field.type)[0].as_py()
    except (ValueError, pa.ArrowException) as exc:
        raise ConfigurationError(
            f"--key {text!r} cannot be read as {field.type} for the key column {field.name!r} "
            f"({exc}); keys of nested types are read in Python, with location(path).state()"
        ) from exc


def _rows(reader: pa.RecordBatchReader) -> Iterator[Row]:
    for batch in reader:
        yield from python_rows(batch)


def _rows_result(schema: pa.Schema, rows: Iterator[Row], arguments: Namespace) -> Result:
    limit = arguments.limit
    format_ = arguments.format or "table"
    if limit is None and format_ == "table" and not arguments.json:
        limit = TABLE_LIMIT
    if limit is not None:
        rows = _first(rows, limit)
    if arguments.json:
        types = {field.name: str(field.type) for field in schema}
        return Result({"schema": types, "rows": list(map(plain, rows))}, "")
    if format_ == "parquet":
        batch = pa.Table.from_pylist(list(rows), schema)
        with whole_file(arguments.output) as path:
            pq.write_table(batch, path)
        return _file_result(arguments.output, len(batch))
    parts = {"table": _as_text, "json": _as_json, "csv": _as_csv}[format_](schema, rows)
    if arguments.output is None:
        return Result({}, "", parts=parts, is_data=format_ != "table")
    with whole_file(arguments.output) as path, path.open("w", encoding="utf-8") as file:
        file.writelines(parts)
    return Result({}, f"{arguments.output}\n")


def _first(rows: Iterator[Row], limit: int) -> Iterator[Row]:
    for _, row in zip(range(limit), rows, strict=False):
        yield row


def _as_text(schema: pa.Schema, rows: Iterable[Row]) -> Iterator[str]:
    yield _text_of(schema.names, rows)


def _text_of(names: Sequence[str], rows: Iterable[Row]) -> str:
    """Return rows as aligned columns; no column goes through a type of pandas, which has no null
    next to a long.
    """
    cells = [[_cell(value) for value in plain(row).values()] for row in rows]
    return f"{text_table(names, cells)}\n" if cells else "no rows\n"


def _cell(value: Any) -> str:
    """Return a plain value as people read it: a null is a dash, and such a text is quoted."""
    text = _text(value)
    if text is None:
        return _NULL
    return json.dumps(text) if text == _NULL or text.startswith('"') else text


def _as_json(_: pa.Schema, rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield json_text(plain(row)) + "\n"


def _as_csv(schema: pa.Schema, rows: Iterable[Row]) -> Iterator[str]:
    yield _csv_line(schema.names)
    for row in rows:
        yield _csv_line([_text(value) for value in plain(row).values()])


def _csv_line(values: Iterable[str | None]) -> str:
    return ",".join(map(_csv_value, values)) + "\n"


def _csv_value(value: str | None) -> str:
    """Return a text as CSV; an empty one is quoted, because a null is nothing."""
    if value is None:
        return ""
    if _QUOTED_IN_CSV.search(value) is None:
        return value
    return '"' + value.replace('"', '""') + '"'


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _as_parquet(view: TableView, arguments: Namespace) -> Result:
    left = arguments.limit
    rows = 0
    with whole_file(arguments.output) as path, pq.ParquetWriter(path, view.schema) as writer:
        for batch in view.to_arrow():
            part = batch if left is None else batch.slice(0, left - rows)
            writer.write_batch(part)
            rows += len(part)
            if left is not None and rows >= left:
                break
    return _file_result(arguments.output, rows)


def _file_result(path: str, rows: int) -> Result:
    return Result({"output": path, "rows": rows}, f"{path}: {rows} rows\n")


def plain(value: Any) -> Any:
    """Return a value of a table as JSON has it: times in ISO form, bytes in hex."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
