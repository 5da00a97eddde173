"""What a user says about a state that cannot follow its stored schema by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row

from pyspark_ckpt.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Turns what is stored of one state into what the processor asks for.

    It is given on the driver, by the name of the wanted state. It is used for data whose stored
    name, map keys or values are not as asked for, and then every function that is given is; with
    `renamed_from`, for data of that name only. Data that is as asked for is left alone, so a
    migration may stay in the code until no checkpoint needs it; take it out before the schema
    changes again. The functions run on executors, once per stored entry.

    Parameters
    ----------
    value
        Takes the stored value as a Row of its stored schema, returns a tuple of the new schema.
    key
        The same for the keys of a map state.
    renamed_from
        The name under which the data is stored; the processor no longer asks for it.

    Raises
    ------
    PlanError
        If nothing is given, or something that is no function or no name.
    """

    value: Callable[[Row], tuple[Any, ...]] | None = None
    key: Callable[[Row], tuple[Any, ...]] | None = None
    renamed_from: str | None = None

    def __post_init__(self) -> None:
        for name, function in (("value", self.value), ("key", self.key)):
            if function is not None and not callable(function):
                raise PlanError(
                    f"Migration: {name}={function!r} is no function; give one that takes the "
                    "stored Row and returns a tuple"
                )
        if self.renamed_from is not None and not _is_name(self.renamed_from):
            raise PlanError(
                f"Migration: renamed_from={self.renamed_from!r} is no name; give the stored name "
                "of the state as text"
            )
        if self.value is None and self.key is None and self.renamed_from is None:
            raise PlanError("Migration: nothing is given; give value=, key= or renamed_from=")


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != ""
