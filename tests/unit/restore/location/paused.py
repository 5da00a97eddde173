"""Storages as a driver sees them that is paused, or killed, before one of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark_ckpt.storage.open import Storage


class Paused:
    """A driver that is paused before one of its steps, and does not know it."""

    def __init__(self, at: int = 0, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.left = at
        self.meanwhile = meanwhile

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.meanwhile()


def pausing(kind: type[Storage], *operations: str) -> Any:
    """Return a class of storages whose `paused` driver makes a step before these operations."""

    def stepping(name: str) -> Callable[..., Any]:
        real = getattr(kind, name)

        def operation(self: Any, *arguments: Any) -> Any:
            self.paused.step()
            return real(self, *arguments)

        return operation

    members = {name: stepping(name) for name in operations}
    return type(f"Paused{kind.__name__}", (kind,), {"paused": Paused(), **members})
