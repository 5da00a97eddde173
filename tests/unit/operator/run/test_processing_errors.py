"""What goes wrong in an epoch arrives as the error that it is, with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from pyspark_ckpt.errors import InputRowsError, ProcessorError, StateValueError
from state_backends import BackendCorruptError
from tests.unit.operator.run.logged_processor import (
    Logged,
    Subtask,
    frame_of,
    register,
)
from tests.unit.operator.subtask_epochs import NUMBER


def boom(*_: Any) -> None:
    raise KeyError("no such thing")


def lazy_boom(*_: Any) -> Iterator[Row]:
    yield Row(k="x", n=1)
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ({"init": boom}, "init"),
        ({"restoreState": boom}, "restoreState"),
        ({"handleInputRows": boom}, r"handleInputRows, key \('a',\)"),
        ({"handleInputRows": lambda *_: lazy_boom()}, r"handleInputRows, key \('a',\)"),
        (
            {"handleInputRows": register(1), "handleExpiredTimer": boom},
            r"handleExpiredTimer, key \('a',\)",
        ),
        (
            {"handleInputRows": register(1), "handleExpiredTimer": lambda *_: lazy_boom()},
            r"handleExpiredTimer, key \('a',\)",
        ),
        ({"snapshotState": boom}, "snapshotState"),
        ({"close": boom}, "close"),
    ],
)
def test_what_the_processor_raises_arrives_with_its_place(
    subtask: Subtask, steps: dict[str, Callable[..., Any]], place: str
) -> None:
    wanted = rf"operator 'u', subtask 0, epoch 0, {place}: Logged raised KeyError: 'no such thing'"
    with pytest.raises(ProcessorError, match=wanted) as raised:
        subtask.run(Logged(**steps), [[frame_of([("a", 1)])]])
    assert isinstance(raised.value.__cause__, KeyError)
    assert subtask.epochs.entries() == {}
    assert subtask.run(Logged(), [[frame_of([("a", 1)])]]) == [("a", 1)]


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (lambda self, key, rows: self.sum.update(("text",)), StateValueError),
        (lambda self, key, rows: [(1, 2, 3)], StateValueError),
        (lambda self, key, rows: self.handle.getValueState("late", NUMBER), ValueError),
        (lambda self, key, rows: (_ for _ in ()).throw(BackendCorruptError("x")),
         BackendCorruptError),
    ],
)  # fmt: skip
def test_errors_of_the_library_stay_what_they_are(
    subtask: Subtask, step: Callable[..., Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        subtask.run(Logged(handleInputRows=step), [[frame_of([("a", 1)])]])
    assert not isinstance(raised.value, ProcessorError)


def test_rows_that_cannot_be_read_are_not_blamed_on_the_processor(subtask: Subtask) -> None:
    cut = frame_of([("a", 1)]).drop_columns(["c1"])
    with pytest.raises(InputRowsError, match=r"operator 'u', subtask 0, epoch 0: .*the processor"):
        subtask.run(Logged(), [[cut]])
    after_a_part = [[frame_of([("a", 1)])], [cut]]
    with pytest.raises(InputRowsError, match=f"supports pandas {pd.__version__}"):
        subtask.run(Logged(), after_a_part)


def test_a_time_that_python_does_not_have_is_named(subtask: Subtask) -> None:
    far = frame_of([("a", 1)]).set_column(2, "c2", pa.array([10**18]))
    processor = Logged()
    with pytest.raises(
        InputRowsError, match=r"operator 'u', subtask 0, epoch 0: column 'at' is timestamp and has"
    ) as error:
        subtask.run(processor, [[far]])
    assert "use an ArrowProcessor" in str(error.value)
    assert "supports pandas" not in str(error.value)
