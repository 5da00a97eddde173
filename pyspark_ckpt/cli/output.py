"""The output of commands: text for people, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pandas as pd

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.text_table import text_pairs, text_table


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a command, as fields and as text.

    `is_done` is false if the command ran and its result is negative. The exit code is then 1.
    `is_answer` is false if it ran and found no result, which the exit code says as for an error.
    `parts` is the text of a long result, which is made while it is printed. `is_data` says that a
    program reads them: unless they go to a terminal, they are printed as they are. `is_shown` says
    that the fields were printed while the command ran.
    """

    fields: dict[str, Any]
    text: str
    is_done: bool = True
    is_answer: bool = True
    parts: Iterable[str] = ()
    is_data: bool = False
    is_shown: bool = False


def as_json(fields: dict[str, Any]) -> str:
    """Return one JSON object, on several lines."""
    return json_text(fields, indent=2) + "\n"


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON; numbers and keys that JSON does not have are texts, as ``NaN``."""
    try:
        return json.dumps(value, indent=indent, default=str, allow_nan=False)
    except (ValueError, TypeError):
        return json.dumps(_as_json(value), indent=indent, default=str, allow_nan=False)


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_as_key(name): _as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    return value


def _as_key(name: Any) -> Any:
    is_of_json = name is None or isinstance(name, str | int | float)
    return _as_json(name) if is_of_json else str(name)


def failure(error: Exception) -> dict[str, Any]:
    """Return an error as JSON fields."""
    return {"error": {"kind": type(error).__name__, "message": str(error)}}


def facts(fields: dict[str, Any]) -> str:
    """Return one field per line, with aligned values."""
    return f"{text_pairs(fields)}\n"


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame's rows, with ``None`` for unknown values and with times in ISO form."""
    return [
        {str(name): _plain_value(value) for name, value in row.items()}
        for row in frame.astype(object).to_dict("records")
    ]


def printable(text: str) -> str:
    """Return text without control characters, because a stored name must not control a terminal."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)


def show(stream: TextIO, text: str) -> None:
    """Write text for people; what the stream's encoding lacks is shown as ``?``."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))


def show_printable(stream: TextIO, text: str) -> None:
    """Write text for people, without control characters; as :func:`show`."""
    show(stream, printable(text))


def hand_over(stream: TextIO, text: str) -> None:
    """Write text that a program reads: in UTF-8, because no other encoding has every character."""
    below: BinaryIO | None = getattr(stream, "buffer", None)
    if below is None:  # a notebook's output, which takes any text
        stream.write(text)
        return
    stream.flush()
    below.write(text.encode())


def check_can_write(option: str, path: Path) -> None:
    """Raise if a file cannot be written, as far as that is known without writing it."""
    if path.is_dir():
        raise ConfigurationError(f"{option} {path} is a directory: give the name of a file")
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"{option} {path}: there is no directory {path.parent}; make it, or give another file"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(
            f"{option} {path} cannot be written: give a file in a directory that you may write to"
        )


@contextmanager
def whole_file(path: str) -> Iterator[Path]:
    """Provide the file to write in place of one that appears, or changes, only once it is whole.

    A pipe or a device, such as ``/dev/stdout``, is written directly.
    """
    wanted = Path(path).resolve()  # what a link stands for, not the link, gets another content
    if wanted.exists() and not wanted.is_file():
        yield wanted
        return
    temporary = wanted.with_name(f".{wanted.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        if wanted.exists():
            shutil.copymode(wanted, temporary)
        temporary.replace(wanted)
    finally:
        temporary.unlink(missing_ok=True)


def one_line(value: object) -> str:
    """Return a name that a file has as text without line breaks, which would forge lines."""
    return printable(str(value)).replace("\n", "?")


def _plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    if pd.isna(value):
        return None
    return value.isoformat() if isinstance(value, pd.Timestamp) else value


def table(frame: pd.DataFrame, empty: str) -> str:
    """Return a frame as lines, or `empty` for a frame without rows."""
    if frame.empty:
        return f"{empty}\n"
    shown = frame.copy()
    if "triggered_at" in shown:
        shown["triggered_at"] = shown["triggered_at"].dt.strftime("%Y-%m-%d %H:%M:%SZ")
    cells = shown.astype(object).where(frame.notna(), "-").astype(str)
    return f"{text_table(list(cells.columns), cells.to_numpy().tolist())}\n"
