"""Keys, input rows and output rows reach the processor and the sink as PySpark's do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from tests.parity.engines import Both
from tests.parity.timed import at

WIDE = (
    "v long, b boolean, k2 int, d double, text string, k1 string, raw binary, "
    "dec decimal(12,2), day date, ts timestamp, ntz timestamp_ntz, s short, f float"
)
NTZ = dt.datetime.fromisoformat("2024-02-29T23:59:59.000001")
FULL = (0.5, "t", b"\x00", Decimal("1.25"), dt.date(1969, 1, 1), at(1.5), NTZ, -3, 2.5)


def wide(v: int, b: Any, k2: Any, k1: Any, rest: tuple[Any, ...] = FULL) -> tuple[Any, ...]:
    d, text, raw, *others = rest
    return (v, b, k2, d, text, k1, raw, *others)


NULLS = (None,) * len(FULL)
SOME = [
    wide(1, True, 1, "x"),
    wide(2, True, 1, "x", NULLS),
    wide(3, False, 2, "x"),
    wide(4, None, None, "x"),
    wide(5, True, 1, None),
    wide(6, None, None, None, NULLS),
    wide(7, True, -1, ""),
]
EPOCHS = [SOME, [(v + 10, *others) for v, *others in SOME]]


class Keyed(StatefulProcessor):
    """Emit the key, each row and what the key has so far."""

    OUTPUT = "key string, row string, n long"

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        emitted = [repr(row) for row in sorted(rows, key=lambda r: r.v)]
        n = (self.n.get() or (0,))[0] + len(emitted)
        self.n.update((n,))
        for text in emitted:
            yield Row(n=n, row=text, key=f"{type(key).__name__} {key!r}")

    def close(self) -> None:
        pass


@pytest.mark.soak_variants
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(("k1", "k2"), marks=pytest.mark.soak),
        ("b", "day", "s", "dec", "raw"),
        ("ts", "ntz", "text", "d", "f"),
    ],
    ids="+".join,
)
def test_keys_and_rows(both: Callable[..., Both], keys: tuple[str, ...]) -> None:
    """Keys of several columns, in another order, not the first ones, of all types, with nulls."""
    rows = both(WIDE, *EPOCHS, processor=Keyed, output=Keyed.OUTPUT, keys=keys).same()
    assert len(rows) == 2 * len(SOME)
    for key in {row.key for row in rows}:
        counts = sorted(row.n for row in rows if row.key == key)
        n = len(counts) // 2
        assert counts == [n] * n + [2 * n] * n
    assert len({row.row for row in rows}) == 2 * len(SOME)


class KeyedPandas(Keyed):
    """The same, for transformWithStateInPandas."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            n = (self.n.get() or (0,))[0] + len(frame)
            self.n.update((n,))
            ordered = frame.sort_values("v")
            text = f"{dict(frame.dtypes.astype(str))} {sorted(frame.index)} {list(key)}"
            for record in ordered.astype(object).values.tolist():
                yield pd.DataFrame({"row": [f"{text} {record}"], "n": n, "key": type(key).__name__})


@pytest.mark.slow
@pytest.mark.soak_variants
@pytest.mark.parametrize(
    ("keys", "nulls"),
    [
        (("k1", "k2"), False),
        (("day", "b"), True),
        pytest.param(("k1", "k2"), True, marks=pytest.mark.soak),
        pytest.param(("day", "b"), False, marks=pytest.mark.soak),
    ],
    ids=["full-k1+k2", "nulls-day+b", "nulls-k1+k2", "full-day+b"],
)
def test_keys_and_frames(both: Callable[..., Both], keys: tuple[str, ...], *, nulls: bool) -> None:
    """Frames have the columns, index and dtypes of PySpark's.

    All rows have nulls, because the dtypes depend on the values of other keys.
    """
    rest = (None, "t", None, None, FULL[4], None, None, *FULL[7:]) if nulls else FULL
    rows = [wide(v, v % 2 == 0, v % 3, "xy"[v % 2], rest) for v in range(8)]
    epochs = [rows[:6], rows[3:]]
    program = both(
        WIDE, *epochs, processor=KeyedPandas, output=Keyed.OUTPUT, keys=keys, pandas=True
    )
    assert len(program.same()) == 11


class Partly(StatefulProcessor):
    """Take no row of some keys, one of others, and all of the rest."""

    OUTPUT = "k string, taken long, n long"

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.n.update(((self.n.get() or (0,))[0] + 1,))
        taken = 0
        for row in rows if key[0] != "none" else ():
            taken += row.v
            if key[0].startswith("one"):
                break
        yield Row(k=key[0], taken=taken, n=self.n.get()[0])

    def close(self) -> None:
        pass


class PartlyPandas(Partly):
    """The same, for transformWithStateInPandas."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        singles = (row for frame in rows for row in frame.itertuples())
        for row in super().handleInputRows(key, singles, timerValues):
            yield pd.DataFrame([row.asDict()])


@pytest.mark.slow
@pytest.mark.parametrize("processor", [Partly, PartlyPandas])
def test_partly_consumed_input(both: Callable[..., Both], processor: type[Partly]) -> None:
    """Rows that are not taken are skipped, however many; the next key gets its own."""
    keys = ["none", "one", "all", "one more", "all of them"]
    epoch = [(key, 1) for key in keys for _ in range(11_000)]
    program = both(
        "k string, v long",
        epoch,
        epoch[::1000],
        processor=processor,
        output=Partly.OUTPUT,
        pandas=processor is PartlyPandas,
    )
    rows = program.same()
    assert sum(row.taken for row in rows) == 2 * (11_000 + 11) + 4
    assert sorted(row.n for row in rows) == [1] * 5 + [2] * 5


class Many(StatefulProcessor):
    """Yield many rows per input row: v of them."""

    OUTPUT = "k string, i long, half double, text string"

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "i long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            for i in range(row.v):
                self.last.update((i,)) if i % 1000 == 0 else None
                yield Row(text=None if i % 3 else f"t{i}", i=i, k=key[0], half=i / 2)

    def close(self) -> None:
        pass


class ManyPandas(Many):
    """Yield one frame for all rows, then a few small and empty ones."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            found = pd.DataFrame(
                [r.asDict() for r in super().handleInputRows(key, frame.itertuples(), timerValues)]
            )
            yield found[["half", "text", "k", "i"]]
            yield from (pd.DataFrame(), found.head(3), found.head(0).astype({"i": "int64"}))


@pytest.mark.soak
@pytest.mark.parametrize("processor", [Many, ManyPandas])
def test_many_output_rows(both: Callable[..., Both], processor: type[Many]) -> None:
    """More rows than fit in a chunk come out for one key, whole and once."""
    epochs = [[("few", 2), ("many", 25_000)], [("many", 20_001), ("none", 1)]]
    program = both(
        "k string, v long",
        *epochs,
        processor=processor,
        output=Many.OUTPUT,
        pandas=processor is ManyPandas,
    )
    rows = program.same()
    small = 0 if processor is Many else 2 + 3 + 3 + 1
    assert len(rows) == 2 + 25_000 + 20_001 + 1 + small


class Loose(StatefulProcessor):
    """Rows with fields too many, too few, in another order; lists, generators, nothing."""

    OUTPUT = "k string, a long, b string, t timestamp"

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Any:
        self.seen.update((1,))
        t = at(1)
        made = {
            "list": [Row(k="list", a=1, b="x", t=t), Row(k="list", a=2, b="y", t=None)],
            "empty": [],
            "generator": (Row(k=key[0], a=row.v, b="g", t=t) for row in rows),
            "order": iter([Row("t", "b", "a", "k")(t, "b", 5, "order")]),
            "too few": [Row(k="too few", b="x")],
            "too many": [Row(z=1.5, k="too many", a=1, b="x", t=t, more=[1])],
        }
        return made[key[0]]

    def close(self) -> None:
        pass


@pytest.mark.soak
@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (["list", "empty", "generator", "order"], 6),
        (["too few"], 1),
        pytest.param(["too many"], 1, marks=pytest.mark.soak),
    ],
    ids=["any iterable", "missing field", "extra field"],
)
def test_output_by_name(both: Callable[..., Both], keys: list[str], count: int) -> None:
    """Output rows are taken by field name: what is missing is null, what is extra is dropped."""
    epoch = [(key, v) for key in keys for v in range(3)]
    rows = both("k string, v long", epoch, processor=Loose, output=Loose.OUTPUT).same()
    assert len(rows) == count


class OneRow(StatefulProcessor):
    """Yield the same list again and again, with one more value each time."""

    OUTPUT = "k string, n long, seen array<long>"

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        seen: list[int] = []
        for value in sorted(row.v for row in rows):
            seen.append(value)
            yield Row(k=key[0], n=value, seen=seen)

    def close(self) -> None:
        pass


class OneFrame(OneRow):
    """Yield the same frame again and again, changed each time."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        seen: list[int] = []
        yielded = pd.DataFrame({"k": [key[0]], "n": [0], "seen": [seen]})
        for value in sorted(value for frame in rows for value in frame["v"].tolist()):
            seen.append(value)
            yielded.loc[0, "n"] = value
            yield yielded


@pytest.mark.soak
@pytest.mark.parametrize("processor", [OneRow, OneFrame])
def test_what_is_yielded_again_and_again(
    both: Callable[..., Both], processor: type[OneRow]
) -> None:
    """Output is what an object held when it was yielded."""
    files = [[("a", 1), ("a", 2), ("b", 3), ("a", 4)], [("b", 5), ("b", 6)]]
    program = both(
        "k string, v long",
        *files,
        processor=processor,
        output=OneRow.OUTPUT,
        pandas=processor is OneFrame,
    )
    found = [(row.k, row.n, row.seen) for row in program.same()]
    assert [each for each in found if each[0] == "a"] == [
        ("a", 1, [1]), ("a", 2, [1, 2]), ("a", 4, [1, 2, 4]),
    ]  # fmt: skip
    assert ("b", 6, [5, 6]) in found
