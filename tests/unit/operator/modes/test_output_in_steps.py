"""Output that is taken in steps, while a call still yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from pyspark_ckpt.errors import StateValueError
from pyspark_ckpt.operator.modes import output as outputs
from pyspark_ckpt.operator.modes.output import ArrowOutput, PandasOutput, RowsOutput
from pyspark_ckpt.operator.rows.mode import Output
from pyspark_ckpt.operator.rows.output import CHUNK_ROWS, OutputRows

pytestmark = pytest.mark.slow

SCHEMA = T.StructType([T.StructField("n", T.LongType()), T.StructField("text", T.StringType())])
NO_OUTPUT: list[Any] = [None, [], iter(())]


def as_rows(numbers: range) -> Iterator[Any]:
    return (Row(n=n, text=f"<{n}>") for n in numbers)


def frame_of(numbers: range) -> pd.DataFrame:
    return pd.DataFrame({"n": numbers, "text": [f"<{n}>" for n in numbers]})


def as_frames(numbers: range) -> Iterator[Any]:
    return (frame_of(numbers[at : at + 1000]) for at in range(0, len(numbers), 1000))


def as_tables(numbers: range) -> Iterator[Any]:
    return (pa.Table.from_pandas(frame, preserve_index=False) for frame in as_frames(numbers))


KINDS = pytest.mark.parametrize(
    ("kind", "yielded", "at_once"),
    [
        (RowsOutput, as_rows, 1), (PandasOutput, as_frames, 1000), (ArrowOutput, as_tables, 1000),
    ],
)  # fmt: skip


def batches_of(output: Output, given: Iterable[Any] | None) -> Iterator[pa.RecordBatch]:
    """Take output as an epoch does."""
    yield from steps_of(output, given)
    if output.rows:
        yield output.take()


def steps_of(output: Output, given: Iterable[Any] | None) -> Iterator[pa.RecordBatch]:
    """Take what leaves while a call yields."""
    rest = output.fill(given)
    while rest is not None:
        yield output.take()
        rest = output.fill(rest)


@KINDS
@pytest.mark.parametrize("rows", [1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 100_000])
def test_all_rows_are_taken_once_and_in_order(
    kind: Callable[..., Output], yielded: Callable[[range], Iterator[Any]], at_once: int, rows: int
) -> None:
    taken = list(batches_of(kind(OutputRows(SCHEMA, "u")), yielded(range(rows))))
    assert [row for batch in taken for row in batch.to_pylist()] == [
        {"c0": n, "c1": f"<{n}>"} for n in range(rows)
    ]
    assert all(batch.num_rows < CHUNK_ROWS + at_once for batch in taken)


@KINDS
def test_a_list_is_taken_as_a_generator_is(
    kind: Callable[..., Output], yielded: Callable[[range], Iterator[Any]], at_once: int
) -> None:
    del at_once
    given = list(yielded(range(3 * CHUNK_ROWS + 1)))
    taken = list(batches_of(kind(OutputRows(SCHEMA, "u")), given))
    assert [n for batch in taken for n in batch.column(0).to_pylist()] == list(
        range(3 * CHUNK_ROWS + 1)
    )
    assert len(taken) > 2


@KINDS
def test_the_call_goes_on_only_after_rows_were_taken(
    kind: Callable[..., Output], yielded: Callable[[range], Iterator[Any]], at_once: int
) -> None:
    drawn = 0

    def counted() -> Iterator[Any]:
        nonlocal drawn
        for item in yielded(range(3 * CHUNK_ROWS)):
            drawn += at_once
            yield item

    taken = 0
    for batch in batches_of(kind(OutputRows(SCHEMA, "u")), counted()):
        taken += batch.num_rows
        assert drawn <= taken + at_once
    assert taken == 3 * CHUNK_ROWS


@KINDS
def test_rows_of_earlier_calls_stay(
    kind: Callable[..., Output], yielded: Callable[[range], Iterator[Any]], at_once: int
) -> None:
    del at_once
    output = kind(OutputRows(SCHEMA, "u"))
    assert output.fill(yielded(range(5))) is None
    for nothing in NO_OUTPUT:
        assert output.fill(nothing) is None
    taken = list(batches_of(output, yielded(range(5, 40_000))))
    assert [n for batch in taken for n in batch.column(0).to_pylist()] == list(range(40_000))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (PandasOutput, frame_of(range(1))),
        (PandasOutput, [[1]]),
        (ArrowOutput, pa.table({"n": [1], "text": ["a"]})),
        (ArrowOutput, [[1]]),
        (ArrowOutput, ["text"]),
        (RowsOutput, Row(n=1, text="a")),
    ],
)
def test_wrong_output_is_refused_as_in_one_step(kind: Callable[..., Output], wrong: Any) -> None:
    errors = []
    for method in ("extend", "fill"):
        with pytest.raises(StateValueError, match=r"processor (returned|yielded)") as raised:
            getattr(kind(OutputRows(SCHEMA, "u")), method)(wrong)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("sizes", [[1] * 300, [900, *[1] * 50], [*[1] * 50, 900], [900] * 3, [900]])
def test_a_large_table_leaves_in_pieces(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    monkeypatch.setattr(outputs, "PIECE_BYTES", 1000)
    texts = [str(n % 10) * size for n, size in enumerate(sizes)]
    table = pa.table({"n": range(len(sizes)), "text": texts})
    taken = list(batches_of(ArrowOutput(OutputRows(SCHEMA, "u")), [table, table]))
    found = [row for batch in taken for row in batch.to_pylist()]
    assert found == 2 * [{"c0": n, "c1": text} for n, text in enumerate(texts)]
    assert all(batch.num_rows == 1 or batch.nbytes < 3000 for batch in taken)


def test_small_tables_leave_before_they_are_too_large_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One column of texts cannot have 2 GB."""
    monkeypatch.setattr(outputs, "PIECE_BYTES", 1000)
    tables = [pa.table({"n": [n], "text": [str(n % 10) * 600]}) for n in range(50)]
    output = ArrowOutput(OutputRows(SCHEMA, "u"))
    for calls in ([tables], [[table] for table in tables]):
        taken = [batch for call in calls for batch in steps_of(output, call)]
        assert [batch.num_rows for batch in taken] == [2] * 25
        assert [n for batch in taken for n in batch.column(0).to_pylist()] == list(range(50))


class Once:
    """Rows that are counted where they are made; it is not an iterator itself."""

    def __init__(self, rows: int) -> None:
        self._numbers = range(rows)
        self.made = 0

    def __iter__(self) -> Iterator[Any]:
        for row in as_rows(self._numbers):
            self.made += 1
            yield row


def test_what_is_no_iterator_is_iterated_once() -> None:
    """The processor may write state where it makes a row."""
    rows = Once(2 * CHUNK_ROWS + 5)
    found = list(batches_of(RowsOutput(OutputRows(SCHEMA, "operator 'op'")), rows))
    assert sum(batch.num_rows for batch in found) == rows.made == 2 * CHUNK_ROWS + 5
