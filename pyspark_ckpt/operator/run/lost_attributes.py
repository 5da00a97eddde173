"""Attributes that a processor changes outside of state; the next epoch does not have them.

Spark ships a fresh copy of the processor to each epoch. What is compared are the attributes that
``__init__`` made and those that appear after ``init``: bindings, and the items of small containers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_ITEMS = 1_000
"""A larger container is compared by its length only."""

MAX_NAMES = 20
"""At most so many attributes are named."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, set, deque, bytearray)


class LostAttributes:
    """Finds the attributes that an epoch changed and that the next epoch does not have.

    Made before ``init`` of the epoch's copy of the processor. `lost` has what was changed, once the
    epoch ends.

    A processor with ``snapshotState`` keeps its attributes itself.
    """

    lost: tuple[str, ...] = ()

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        is_kept = hasattr(processor, "snapshotState") or not hasattr(processor, "__dict__")
        self._before_init: dict[str, Any] | None = None if is_kept else dict(vars(processor))
        self._after_init: dict[str, Any] = {}

    @contextmanager
    def during_init(self) -> Iterator[None]:
        """Remember at the end of the context what ``init`` has left."""
        yield
        self._end_of_init()

    @contextmanager
    def during_end(self) -> Iterator[None]:
        """Compare at the begin of the context, before ``close`` changes attributes."""
        self.lost = self._names()
        yield

    def _end_of_init(self) -> None:
        """Remember the attributes that ``init`` leaves as they were; it sets the others anew."""
        if self._before_init is None:
            return
        self._of_init = {
            name
            for name, value in vars(self._processor).items()
            if name not in self._before_init or self._before_init[name] is not value
        }
        self._after_init = {
            name: (value, _items(value))
            for name, value in vars(self._processor).items()
            if name not in self._of_init
        }

    def _names(self) -> tuple[str, ...]:
        """Return what was changed, or set for the first time, after ``init``; sorted."""
        if self._before_init is None:
            return ()
        changed = {
            name
            for name, value in vars(self._processor).items()
            if name not in self._of_init and not self._is_as_before(name, value)
        }
        if changed:  # init may set an attribute to what it was already
            changed -= _names_in_init(type(self._processor))
        return tuple(sorted(changed)[:MAX_NAMES])

    def _is_as_before(self, name: str, value: Any) -> bool:
        if name not in self._after_init:
            return False
        before, items = self._after_init[name]
        if before is not value:
            return (
                type(before) is type(value) and isinstance(value, _PLAIN) and bool(before == value)
            )
        return items is None or items == _items(value)


def warning(where: str, names: Iterable[str]) -> str:
    """Return what a user is warned of."""
    return (
        f"{where}: the processor changed {', '.join(map(repr, names))} outside of init; the next "
        "epoch works with a fresh copy of the processor, which does not have that: keep it in "
        "state, or set it in init"
    )


def _names_in_init(processor: type) -> set[str]:
    """Return the names that ``init`` uses, and the methods that it calls."""
    pending, names = ["init"], set[str]()
    while pending:
        method = pending.pop()
        for each in processor.__mro__:
            code = getattr(vars(each).get(method), "__code__", None)
            if code is not None:
                pending += [name for name in code.co_names if name not in names]
                names.update(code.co_names)
    return names


def _items(value: Any) -> Any:
    """Return a value that changes with a container's items, ``None`` for other objects."""
    if not isinstance(value, _CONTAINERS):
        return None
    if len(value) > MAX_ITEMS:
        return len(value)
    if isinstance(value, dict):
        return len(value), [(id(key), id(item)) for key, item in value.items()]
    return len(value), list(map(id, value))
