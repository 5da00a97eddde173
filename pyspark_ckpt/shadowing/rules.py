"""What counts as a difference between two programs, and when a shadow ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.shadowing.difference import OUTPUT, ShadowDifference

Expected = Callable[[ShadowDifference], bool]
"""Returns whether a difference is one that the user wants."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a shadow compares, and for how long.

    `keys` are the key columns of the output, ``None`` to take the operators' key columns.
    `states_every` is the number of epochs between two comparisons of states.
    """

    epochs: int | None = None
    max_differences: int | None = None
    ignore: frozenset[str] = frozenset()
    tolerance: float = 0.0
    expected: Expected | None = None
    keys: tuple[str, ...] | None = None
    states_every: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "max_differences", "states_every"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigurationError(f"shadow: {name} is {value!r}: give a number above zero")
        if not 0 <= self.tolerance < 1:
            raise ConfigurationError(
                f"shadow: tolerance is {self.tolerance!r}: give a number from 0 up to 1, such as "
                "1e-9"
            )
        for name in self.ignore:
            if "." not in name:
                raise ConfigurationError(
                    f"shadow: ignore has {name!r}: write output.<column>, <uid>.*, "
                    "<uid>.<state> or <uid>.<state>.<column>"
                )

    def ignores(self, place: str, column: str | None = None) -> bool:
        """Return whether a place, or a column of it, is left out."""
        return (place if column is None else f"{place}.{column}") in self.ignore

    def ignored_columns(self, names: Iterable[str]) -> set[str]:
        """Return the columns of the output that are left out."""
        return {name for name in names if self.ignores(OUTPUT, name)}
