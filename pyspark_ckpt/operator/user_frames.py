"""The lines of the user's code in an error, as text for its message.

Spark passes an executor's error on as text, and its simplified traceback leaves causes out. So the
lines are a part of the message.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import pyspark

import state_backends
from pyspark_ckpt import errors

FIRST_FRAMES, LAST_FRAMES = 4, 8
"""The frames that are shown of a deeper stack, for example of a recursion."""

MAX_CAUSES = 3
MAX_LINE_CHARACTERS = 160
MAX_VALUE_CHARACTERS = 300
"""What is shown of a key or a value."""
MAX_TEXT_CHARACTERS = 2_000
"""What is shown of the message of an error."""

_LIBRARIES = tuple(
    f"{Path(each).parent}/"
    for each in (errors.__file__, state_backends.__file__, pyspark.__file__)
    if each is not None
)

Sources = Mapping[str, Sequence[str]]


def user_frames(error: BaseException, sources: Sources | None = None) -> str:
    """Return where in the user's code an error was raised, and its causes.

    The lines are as in Python's tracebacks, each after a line break, without those of this library
    and PySpark. The text is empty if the user's code has no part in the error.
    """
    known = sources or {}
    text = "".join(_frames(error, known))
    cause = _cause_of(error)
    for _ in range(MAX_CAUSES):
        if cause is None:
            break
        if frames := "".join(_frames(cause, known)):
            text += f"\n  caused by {type(cause).__name__}: {shortened(str(cause))}{frames}"
        cause = _cause_of(cause)
    return text


def origin_of(error: BaseException) -> str:
    """Return which kind of error it is: its type, its causes, and where each was raised.

    Two errors of the same lines have the same origin, whatever their messages and the directory of
    the code are.
    """
    found = []
    each: BaseException | None = error
    for _ in range(1 + MAX_CAUSES):
        if each is None:
            break
        kind = type(each)
        found.append(f"{kind.__module__}.{kind.__qualname__}")
        found += [
            f"{Path(frame.f_code.co_filename).name}:{line}"
            for frame, line in traceback.walk_tb(each.__traceback__)
        ][-LAST_FRAMES:]
        each = _cause_of(each)
    return "\n".join(found)


def definition(owner: Any, method: str, sources: Sources | None = None) -> str:
    """Return where a method is defined, in the form of :func:`user_frames`.

    Empty if that is not in the user's code.
    """
    code = getattr(inspect.unwrap(getattr(owner, method, None) or len), "__code__", None)
    if not isinstance(code, CodeType) or code.co_filename.startswith(_LIBRARIES):
        return ""
    return _frame(code.co_filename, code.co_firstlineno, code.co_name, sources or {})


def shortened(text: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
    """Return a text, or its beginning and how much was left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text) - limit} more characters)"


def shown(value: object) -> str:
    """Return a key or value as an error shows it."""
    return shortened(repr(value), MAX_VALUE_CHARACTERS)


def _frames(error: BaseException, sources: Sources) -> Iterator[str]:
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_LIBRARIES)
    ]
    frames = frames[_first_of_the_user(frames) :]
    left_out = len(frames) - FIRST_FRAMES - LAST_FRAMES
    for number, frame in enumerate(frames):
        if left_out <= 0 or not FIRST_FRAMES <= number < FIRST_FRAMES + left_out:
            yield _frame(*frame, sources)
        elif number == FIRST_FRAMES:
            yield f"\n  ... {left_out} more frames ..."


def _first_of_the_user(frames: list[tuple[str, int, str]]) -> int:
    """Return where the interpreter's own frames end, such as those of context managers."""
    for number, (file, _, _) in enumerate(frames):
        if not file.startswith((_STANDARD_LIBRARY, "<frozen ")) or _INSTALLED in file:
            return number
    return len(frames)


_STANDARD_LIBRARY = f"{Path(traceback.__file__).parent}/"
_INSTALLED = "-packages/"
"""In the path of every installed package, which may well be the user's."""


def _frame(file: str, line: int, function: str, sources: Sources) -> str:
    lines = sources.get(file)
    if lines is None:
        text = linecache.getline(file, line)
    else:
        text = lines[line - 1] if 0 < line <= len(lines) else ""
    shown = f"\n    {shortened(text.strip(), MAX_LINE_CHARACTERS)}" if text.strip() else ""
    return f'\n  File "{file}", line {line}, in {function}{shown}'


def _cause_of(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__
