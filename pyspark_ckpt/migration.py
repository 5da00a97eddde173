"""How the stored data of a state becomes what the processor now declares, given by the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row

from pyspark_ckpt.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """Convert the stored data of one state into what the processor declares.

    You give a migration on the driver, under the name of the declared state. It applies to data
    whose stored name, map keys or values differ from the declaration; then all its functions run.
    With `renamed_from`, it applies to data of that name only. Data that fits is not changed, so a
    migration may stay in the code until no checkpoint needs it. Remove it before the schema changes
    again. The functions run on executors, once per stored entry.

    Parameters
    ----------
    value : callable, optional
        Takes the stored value as a Row of its stored schema, returns a tuple of the new schema.
    key : callable, optional
        The same for the keys of a map state.
    renamed_from : str, optional
        The name under which the data is stored, if the processor no longer declares it.

    Raises
    ------
    PlanError
        If no argument is given, or one is not a function or a name.

    Examples
    --------
    >>> cents = ckpt.Migration(value=lambda row: (round(100 * row.euros),))
    >>> cents.value(Row(euros=2.5))
    (250,)
    """

    value: Callable[[Row], tuple[Any, ...]] | None = None
    key: Callable[[Row], tuple[Any, ...]] | None = None
    renamed_from: str | None = None

    def __post_init__(self) -> None:
        for name, function in (("value", self.value), ("key", self.key)):
            if function is not None and not callable(function):
                raise PlanError(
                    f"Migration: {name}={function!r} is not a function; give one that takes the "
                    "stored Row and returns a tuple"
                )
        old: object = self.renamed_from
        if old is not None and (not isinstance(old, str) or not old):
            raise PlanError(
                f"Migration: renamed_from={self.renamed_from!r} is not a name; give the stored "
                "name of the state as text"
            )
        if self.value is None and self.key is None and self.renamed_from is None:
            raise PlanError("Migration: nothing is given; give value=, key= or renamed_from=")
