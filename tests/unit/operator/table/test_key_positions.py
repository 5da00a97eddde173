"""Keys that a processor gives are taken by their positions, which it may not lose."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pyspark_ckpt import BatchProcessor
from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.table.keys import KEY_POSITION, PartKeys, positions_of
from pyspark_ckpt.testing import ProcessorHarness

Frame = pd.DataFrame
KEYS = Frame({"user": ["ada", "bob", None, "eve"], "x": [1.5, math.nan, 2.0, math.nan]})


def part(shown: Frame) -> PartKeys:
    encoded = pa.array([f"{number}".encode() for number in range(len(shown))], pa.binary())
    keys = PartKeys(np.zeros(len(shown), np.int64), encoded)
    keys.shown = shown.copy(deep=False)
    return keys


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda keys: keys, [0, 1, 2, 3]),
        (lambda keys: keys.copy(), [0, 1, 2, 3]),
        (lambda keys: keys.reset_index(drop=True), [0, 1, 2, 3]),
        (lambda keys: keys.assign(n=1), [0, 1, 2, 3]),
        (lambda keys: keys.assign(user=keys["user"].str.upper()), [0, 1, 2, 3]),
        (lambda keys: keys.assign(user="ada"), [0, 1, 2, 3]),
        (lambda keys: keys.astype({"user": "category"}), [0, 1, 2, 3]),
        (lambda keys: keys[["x"]], [0, 1, 2, 3]),
        (lambda keys: keys[[]], [0, 1, 2, 3]),
        (lambda keys: keys[keys["x"].isna()], [1, 3]),
        (lambda keys: keys.sort_values("user", ascending=False), [3, 1, 0, 2]),
        (lambda keys: keys.iloc[[1, 3]].set_axis([1.0, 3.0]), [1, 3]),
        (lambda keys: keys.iloc[[1, 3]].set_axis(pd.Index([1, 3], dtype=object)), [1, 3]),
        (lambda keys: keys.iloc[:0].astype({"user": "category"}), []),
        (lambda keys: keys.iloc[:0], []),
        (lambda keys: keys.iloc[[0, 0, 2]], [0, 0, 2]),
        (lambda keys: keys.iloc[:0].reset_index(drop=True), []),
    ],
)
def test_frames_that_keep_their_index(
    change: Callable[[Frame], Frame], expected: list[int]
) -> None:
    keys = KEYS.copy()
    assert positions_of(change(keys), part(keys), "state").tolist() == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda keys: keys[keys["x"].isna()].reset_index(drop=True),
        lambda keys: keys.sort_values("user", ascending=False, ignore_index=True),
        lambda keys: keys.assign(n=1).merge(Frame({"user": ["eve", "bob"]})),
        lambda keys: pd.concat([keys.iloc[2:], keys.iloc[:1]], ignore_index=True),
    ],
)
def test_frames_that_were_numbered_anew(change: Callable[[Frame], Frame]) -> None:
    keys = KEYS.copy()
    with pytest.raises(StateValueError, match=r"state: row 0 .* its index is that of \('ada', 1.5"):
        positions_of(change(keys), part(keys), "state")


@pytest.mark.parametrize(
    "change",
    [
        lambda keys: keys.set_index("user"),
        lambda keys: keys.set_index("x"),
        lambda keys: keys.set_axis([0, 1, 2, 4]),
        lambda keys: keys.set_axis([-1, 0, 1, 2]),
        lambda keys: keys.set_axis(["0", "1", "2", "3"]),
    ],
)
def test_positions_that_no_key_has(change: Callable[[Frame], Frame]) -> None:
    keys = KEYS.copy()
    with pytest.raises(StateValueError, match="positions 0 to 3 of the keys that the method got"):
        positions_of(change(keys), part(keys), "state")


@pytest.mark.parametrize("positions", [[0, 4], [-1], [0, None], [0.5], ["0"]])
def test_arrow_positions_that_no_key_has(positions: list[Any]) -> None:
    for keys in (part(KEYS), [(b"", b"")] * 4):
        with pytest.raises(StateValueError, match="the column 'key_position' of the given"):
            positions_of(pa.table({KEY_POSITION: positions}), keys, "state")


class Marks(BatchProcessor):
    """Writes to the keys with an even number; a careless one numbers them anew."""

    careless = False

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.state = handle.getValueState("marks", "n long")

    def handleInputBatch(self, keys: Frame, rows: Frame, timerValues: Any) -> None:
        sums = rows.groupby(level=0)["v"].sum()
        even = keys[sums % 2 == 0]
        if self.careless:
            even = even.reset_index(drop=True)
        self.state.updateMany(even, Frame({"n": sums[sums % 2 == 0].to_numpy()}))
        self.handle.registerTimers(even, [5_000] * len(even))

    def close(self) -> None:
        pass


def test_a_batch_that_numbers_its_keys_anew_writes_no_state_of_others() -> None:
    rows = Frame({"k": list("abcdef"), "v": [1, 2, 3, 4, 5, 6]})
    harness = ProcessorHarness(Marks(), timeMode="ProcessingTime", outputStructType="k string")
    harness.testInBatches(rows, "k")
    assert [harness.peekValueState("marks", key) for key in "abcdef"] == [
        None, (2,), None, (4,), None, (6,),
    ]  # fmt: skip
    careless = Marks()
    careless.careless = True
    harness = ProcessorHarness(careless, timeMode="ProcessingTime", outputStructType="k string")
    with pytest.raises(StateValueError, match="so keep it"):
        harness.testInBatches(rows, "k")
