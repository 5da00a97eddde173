"""The quarantine of a harness: rows of any objects, and releases that a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import types as T

from pyspark_ckpt.operator.descriptor import QuarantineLimits
from pyspark_ckpt.operator.quarantine.parked_keys import ParkedKeys
from pyspark_ckpt.operator.quarantine.releases import NO_KEY, ReleasedKeys
from pyspark_ckpt.operator.state.registry import StateRegistry
from pyspark_ckpt.testing.given_input import is_frame_of_rows


class _KeptRow(NamedTuple):
    """A row of a frame of sent rows."""

    frame: pd.DataFrame
    place: int


_numbers = count()
_kept: dict[int, _KeptRow] = {}


class GivenRows:
    """Keeps the rows of parked keys by numbers; the rows themselves stay in this process.

    A query keeps them in its state, in the types of its columns. Rows of a test have no types.
    """

    schema = T.StructType([T.StructField("row_of_the_test", T.LongType())])

    def values(self, sent: pd.DataFrame) -> list[tuple[Any, ...]]:
        """Return a number for each row."""
        found = []
        for place in range(len(sent)):
            number = next(_numbers)
            _kept[number] = _KeptRow(sent, place)
            found.append((number,))
        return found

    def sent(self, rows: Sequence[tuple[Any, ...]], key_group: int) -> pd.DataFrame:  # noqa: ARG002
        """Return rows of one key and epoch, which came in one frame."""
        kept = [_kept[number] for (number,) in rows]
        return kept[0].frame.take([each.place for each in kept]).reset_index(drop=True)


class GivenParked(NamedTuple):
    """The parked keys of a harness: the error of each stored key, and whether it got frames."""

    errors: dict[bytes, str]
    in_frames: bool | None


def parked_of(states: StateRegistry, key_groups: range, where: str) -> GivenParked:
    """Return what is known of the parked keys of a harness."""
    parked = ParkedKeys(states, GivenRows(), key_groups, QuarantineLimits(), 0, where)
    in_frames = None
    for key in sorted(parked.found):
        states.table.begin_part([key])
        states.table.enter(0)
        for rows in parked.kept():
            in_frames = not is_frame_of_rows(rows.sent)
    states.table.current.leave()
    return GivenParked(
        {key: parked.found[group, key].error for group, key in sorted(parked.found)}, in_frames
    )


class GivenReleases:
    """What the next epoch of a harness releases."""

    def __init__(self) -> None:
        self.next: ReleasedKeys = NO_KEY

    def keys(self) -> ReleasedKeys:
        """Return the stored keys that the epoch releases."""
        return self.next

    def arm(self) -> None:
        """Do nothing: an epoch of a harness is not repeated by itself."""
