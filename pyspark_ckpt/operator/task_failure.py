"""How an error comes from a task to the driver, with the lines of the user's code.

Spark passes only the text of a Python worker's traceback to the driver. So the message of an error
that leaves a task ends with a mark: a version, the class of the error and the message's length.
This module alone writes the mark, and this module alone reads it. A text inside the message, which
may come from user code, cannot pass for the mark, because the real mark follows it.

Spark passes an executor's error on as text, and its simplified traceback leaves causes out. So the
lines are a part of the message.
"""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import CodeType
from typing import Any, ParamSpec, TypeVar

import pyspark

import state_backends
from pyspark_ckpt import errors
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.values.words import shortened

_VERSION = 1
_MARK = re.compile(r"\n  \[pyspark_ckpt error ([0-9]{1,9}): (\w{1,64}), ([0-9]{1,9}) characters\]")
Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")

FIRST_FRAMES, LAST_FRAMES = 4, 8
"""The frames that are shown of a deeper stack, for example of a recursion."""

MAX_CAUSES = 3
MAX_LINE_CHARACTERS = 160

_LIBRARIES = tuple(
    f"{Path(each).parent}/"
    for each in (errors.__file__, state_backends.__file__, pyspark.__file__)
    if each is not None
)

Sources = Mapping[str, Sequence[str]]
_STANDARD_LIBRARY = f"{Path(traceback.__file__).parent}/"

_INSTALLED = "-packages/"
"""In the path of every installed package, which may well be the user's."""


def marks_errors(
    function: Callable[Arguments, Iterator[Item]],
) -> Callable[Arguments, Iterator[Item]]:
    """Return a generator function that marks the errors which leave it."""

    @wraps(function)
    def marked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Item]:
        with marked_errors():
            yield from function(*args, **kwargs)

    return marked


@contextmanager
def marked_errors() -> Iterator[None]:
    """Mark an error of this library that leaves the context, for :func:`failure_in`."""
    try:
        yield
    except CkptError as exc:
        if not _is_marked(exc):  # by a context inside this one
            message = str(exc)
            exc.append(
                f"\n  [pyspark_ckpt error {_VERSION}: {type(exc).__name__}, "
                f"{len(message)} characters]"
            )
        raise


def failure_in(text: str) -> CkptError | None:
    """Return the error of this library that a task ended with."""
    mark = _last_mark(text)
    if mark is None or int(mark[1]) != _VERSION:
        return None
    kind, length = getattr(errors, mark[2], None), int(mark[3])
    if not isinstance(kind, type) or not issubclass(kind, CkptError) or length > mark.start():
        return None
    return kind(text[mark.start() - length : mark.start()])


def _is_marked(error: CkptError) -> bool:
    text = str(error)
    mark = _last_mark(text)
    return (
        mark is not None
        and mark.end() == len(text)
        and mark.start() == int(mark[3])
        and mark[2] == type(error).__name__
    )


def _last_mark(text: str) -> re.Match[str] | None:
    return next(reversed(list(_MARK.finditer(text))), None)


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
