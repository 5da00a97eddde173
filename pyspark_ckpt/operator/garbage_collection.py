"""Keeps Python's collector from walking an epoch's keys and values again and again.

They hold no cycles, and there are many of them. Measured with 500,000 rows in a subtask, all held
at once, an epoch took 4.6 s with the collector walking them and 1.3 s without.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rows_are_made() -> Iterator[None]:
    """Collect nothing, and leave out for later what was made: it stays, and holds no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def rows_are_used() -> Iterator[None]:
    """Leave the rows out until the end; cycles that the user's code makes are collected."""
    try:
        yield
    finally:
        gc.unfreeze()
