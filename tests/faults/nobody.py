"""Runs a function as a user without rights, because root may do everything."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534


def as_nobody(function: Callable[[], object]) -> str:
    """Return what a function raises when a user without rights calls it, as text."""
    if os.getuid() != 0:
        return _raised(function)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, _raised(function).encode())
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def let_enter(path: Path) -> None:
    """Let others enter a temporary directory; pytest's own above it are for its user only."""
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    for each in (path, *path.parents):
        if root in map(str, each.parents):
            each.chmod(0o755)


def _raised(function: Callable[[], object]) -> str:
    try:
        return f"returned {function()!r}"
    except Exception as exc:  # it is what the caller wants to see
        return f"{type(exc).__name__}: {exc}"
