"""How an error of this library comes from a task to the driver.

Spark passes only the text of a Python worker's traceback to the driver. So the message of an error
that leaves a task ends with a mark: a version, the class of the error and the message's length.
This module alone writes the mark, and this module alone reads it. A text inside the message, which
may come from user code, cannot pass for the mark, because the real mark follows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from pyspark_ckpt import errors
from pyspark_ckpt.errors import CkptError

_VERSION = 1
_MARK = re.compile(r"\n  \[pyspark_ckpt error ([0-9]{1,9}): (\w{1,64}), ([0-9]{1,9}) characters\]")

Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")


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
