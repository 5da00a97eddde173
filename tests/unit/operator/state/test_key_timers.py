"""The times that ``registerTimers`` and ``deleteTimers`` get, in whatever form."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pyspark_ckpt.errors import StateValueError
from tests.unit.operator.subtask_epochs import SubtaskEpochs

LEAST, MOST = -(2**63), 2**63 - 1
KEYS = pa.table({"key_position": [0, 1, 1]})
TIMES = [5, LEAST, MOST]


@pytest.mark.parametrize("keys", [KEYS, pd.DataFrame(index=[0, 1, 1])], ids=["Arrow", "pandas"])
@pytest.mark.parametrize(
    "times",
    [
        TIMES,
        iter(TIMES),
        np.array(TIMES),
        np.array(TIMES, ">i8"),
        pd.Series(TIMES, index=[7, 7, 7]),
        pa.array(TIMES),
        pa.chunked_array([TIMES[:1], TIMES[1:]]),
        pa.array(TIMES, pa.decimal128(20)),
        [np.int64(5), float(LEAST), MOST],
    ],
    ids=lambda times: type(times).__name__,
)
def test_times_of_any_form(subtask_epochs: SubtaskEpochs, keys: Any, times: Any) -> None:
    if not isinstance(times, list) and iter(times) is times:
        times = iter(TIMES)  # of this test only
    handle = subtask_epochs.begin()
    handle.registerTimers(keys, times)
    found = []
    for position in range(2):
        subtask_epochs.to_key(position)
        found.append(list(handle.listTimers()))
    assert found == [[5], [LEAST, MOST]]


@pytest.mark.parametrize(
    "wrong",
    [
        1.5,
        math.nan,
        math.inf,
        None,
        pd.NaT,
        2**63,
        LEAST - 1,
        "5",
        datetime.datetime(2026, 1, 1),  # noqa: DTZ001
    ],
    ids=str,
)
def test_what_is_no_time_is_refused(subtask_epochs: SubtaskEpochs, wrong: Any) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(StateValueError, match="registerTimers got the time") as raised:
        handle.registerTimers(KEYS, [5, wrong, 6])
    assert f"operator 'u': registerTimers got the time {wrong!r}" in str(raised.value)
    with pytest.raises(StateValueError, match="deleteTimers got the time"):
        handle.deleteTimers(KEYS, [wrong, 5, 6])
    assert list(handle.listTimers()) == []


@pytest.mark.parametrize(
    "times",
    [
        pa.array([5, None, 6]),
        pa.array([5, 2**63, 6], pa.uint64()),
        np.ma.masked_less(np.array([5, -1, 6]), 0),
        pa.array([5.0, math.nan, 6.0]),
    ],
    ids=["null", "unsigned", "masked", "NaN"],
)
def test_columns_with_what_is_no_time_are_refused(
    subtask_epochs: SubtaskEpochs, times: Any
) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(StateValueError, match="got the time"):
        handle.registerTimers(KEYS, times)


@pytest.mark.parametrize("times", [[], [5, 6], np.array([5]), pa.array([5, 6, 7, 8])], ids=len)
def test_a_time_for_each_key(subtask_epochs: SubtaskEpochs, times: Any) -> None:
    handle = subtask_epochs.begin()
    with pytest.raises(StateValueError, match=f"got {len(times)} times for 3 keys"):
        handle.registerTimers(KEYS, times)
