"""What arguments of ``pyspark-ckpt`` are read as; an error says what to give."""

from __future__ import annotations

from argparse import ArgumentTypeError

_MOST_PORTS = 65535


def path(text: str) -> str:
    """Return a path or URL. An empty one would mean the directory that the command runs in."""
    if not text.strip():
        raise _wrong(text, "a path; it is empty, such as of a variable that is not set")
    return text


def renaming(text: str) -> tuple[str, str]:
    """Return the old and the new uid of ``OLD=NEW``."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise _wrong(text, "OLD=NEW, an operator's uid and its new one")
    return old, new


def count(text: str) -> int:
    """Return a number that may be 0."""
    return _number(text, 0, "a whole number, 0 or more")


def positive(text: str) -> int:
    """Return a number above 0."""
    return _number(text, 1, "a whole number above 0")


def seconds(text: str) -> float:
    """Return a time in seconds."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise _wrong(text, "a number of seconds above 0")
    return found


def port(text: str) -> int:
    """Return the number of a port, 0 for any."""
    wanted = f"a port, 0 to {_MOST_PORTS}"
    found = _number(text, 0, wanted)
    if found > _MOST_PORTS:
        raise _wrong(text, wanted)
    return found


def _number(text: str, least: int, wanted: str) -> int:
    try:
        found = int(text)
    except ValueError:
        raise _wrong(text, wanted) from None
    if found < least:
        raise _wrong(text, wanted)
    return found


def _wrong(text: str, wanted: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{text!r}: give {wanted}")
