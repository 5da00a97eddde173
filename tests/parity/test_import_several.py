"""A query of Spark with several stateful operators is imported whole, and continues."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

import pyspark_ckpt as ckpt
from tests.by_value import pickled_by_value
from tests.parity import importing
from tests.parity.engines import ENDS, PROVIDER, ROCKSDB, configured
from tests.parity.importing import check_same
from tests.query.harness import Feed

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
BY_USER, BY_SIZE = "k string, size long", "size long, users long, last string"


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value() -> Iterator[None]:
    with pickled_by_value(importing):
        yield


class Sizes(StatefulProcessor):
    """Passes on how many rows a user has; timers of an hour wait."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", "n long")
        self.pages = handle.getListState("pages", "v long", HOUR_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.total.get() or (0,))[0]
        for row in rows:
            n += 1
            self.pages.appendValue((row.v,))
        self.total.update((n,))
        if n == 1:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + HOUR_MS)
        assert sum(1 for _ in self.handle.listTimers()) <= 1
        yield Row(k=key[0], size=len(list(self.pages.get())))

    def close(self) -> None:
        pass


class Users(StatefulProcessor):
    """Counts the rows of the first operator by size."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")
        self.seen = handle.getMapState("seen", "k string", "times long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.total.get() or (0,))[0]
        for row in rows:
            n += 1
            times = self.seen.getValue((row.k,))[0] if self.seen.containsKey((row.k,)) else 0
            self.seen.updateValue((row.k,), (times + 1,))
        self.total.update((n,))
        yield Row(
            size=key[0], users=n, last=str(sorted(str(k) for (k,), _ in self.seen.iterator()))
        )

    def close(self) -> None:
        pass


def group_sizes(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    (n,) = state.get if state.exists else (0,)
    n += sum(map(len, frames))
    state.update((n,))
    yield pd.DataFrame({"k": [key[0]], "size": [n]})


class GroupSizes(StatefulProcessor):
    """The same as ``group_sizes`` with a state."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.total.get() or (0,))[0] + sum(1 for _ in rows)
        self.total.update((n,))
        yield Row(k=key[0], size=n)

    def close(self) -> None:
        pass


def to_total(key: Any, state: Any, timeout_ms: Any) -> ckpt.KeyState:
    return ckpt.KeyState({"total": state})


def sizes(keyed: Any, **uid: str) -> DataFrame:
    made: DataFrame = keyed.transformWithState(Sizes(), BY_USER, "Append", "ProcessingTime", **uid)
    return made


def group(keyed: Any) -> DataFrame:
    made: DataFrame = keyed.applyInPandasWithState(
        group_sizes, BY_USER, "n long", "append", GroupStateTimeout.NoTimeout
    )
    return made


def ours_of_group(keyed: Any, **uid: str) -> DataFrame:
    made: DataFrame = keyed.transformWithState(GroupSizes(), BY_USER, "Append", "None", **uid)
    return made


def users(keyed: Any, **uid: str) -> DataFrame:
    made: DataFrame = keyed.transformWithState(Users(), BY_SIZE, "Append", "None", **uid)
    return made


def run(writer: Any, location: Path) -> list[Row]:
    """Run a query in append mode to the end of its input; return all rows of all epochs, sorted."""
    emitted: dict[int, list[Row]] = {}

    def keep(df: DataFrame, epoch: int) -> None:
        emitted[epoch] = df.collect()

    query = writer.foreachBatch(keep).outputMode("append")
    query = query.option("checkpointLocation", str(location)).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = [Row(epoch=epoch, **row.asDict()) for epoch, found in emitted.items() for row in found]
    return sorted(rows, key=str)


FILES = [
    [("a", 1), ("b", 2), ("a", 3)],
    [("c", 4), (None, 5), ("b", 6)],
    [("a", 7), ("b", 8), ("new", 9)],
    [(None, 10), ("c", 11), ("new", 12)],
]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("native_first", "our_first", "first"),
    [
        (sizes, sizes, ckpt.ImportedOperator(Sizes(), "sizes")),
        (group, ours_of_group, ckpt.ImportedOperator(GroupSizes(), "sizes", to_total, "None")),
    ],
    ids=["transformWithState", "applyInPandasWithState"],
)
def test_two_operators(
    spark: SparkSession,
    tmp_path: Path,
    native_first: Callable[..., DataFrame],
    our_first: Callable[..., DataFrame],
    first: ckpt.ImportedOperator,
) -> None:
    """Both continue as in the query of Spark that was never stopped, with states of one name."""
    feed = Feed(tmp_path / "in").add(*FILES[:2])

    def run_native(location: str) -> list[Row]:
        made = users(native_first(feed.stream(spark).groupBy("k")).groupBy("size"))
        with configured(spark, {PROVIDER: ROCKSDB, **ENDS}):
            return run(made.writeStream, tmp_path / location)

    def imported(**arguments: Any) -> ckpt.results.Savepoint:
        return ckpt.location(str(tmp_path / "native")).import_checkpoint(
            str(tmp_path / "imported"), spark=spark, **arguments
        )

    earlier = run_native("native")
    second = ckpt.ImportedOperator(Users(), "users")
    with pytest.raises(
        ckpt.errors.PlanError, match=r"has several stateful operators: .* 1 \("
    ) as caught:
        imported(processor=Users(), uid="users")
    ids = {name: number for number, name in named_operators(str(caught.value))}
    assert ids == {"users": 0, "sizes": 1}, "the operator next to the sink is the first"
    with pytest.raises(ckpt.errors.PlanError, match="has other stateful operators than 0: give"):
        imported(operators={0: second})
    of_ids = {ids["users"]: second, ids["sizes"]: first}
    with pytest.raises(ckpt.errors.CkptError):  # never the state of one in the other
        imported(operators={ids["users"]: first, ids["sizes"]: second})
    assert not list((tmp_path / "imported").glob("*/_metadata"))
    savepoint = imported(operators=of_ids)
    (origin,) = [
        row for row in ckpt.location(savepoint.path).lineage().itertuples() if "native" in row.path
    ]
    assert origin.epoch == 1

    shutil.copytree(tmp_path / "native", tmp_path / "lost")
    shutil.rmtree(tmp_path / "lost" / "state" / "0")
    with pytest.raises(
        ckpt.errors.CorruptFileError, match="operator 0 is missing"
    ):  # not one of one
        ckpt.location(str(tmp_path / "lost")).import_checkpoint(
            str(tmp_path / "out"), operators={1: first}, spark=spark
        )

    feed.add(*FILES[2:])
    keyed = ckpt.key_by(our_first(ckpt.key_by(feed.stream(spark), "k"), uid="sizes"), "size")
    made = users(keyed, uid="users")
    print(ckpt.location(savepoint.path).plan(made))
    with configured(spark, ENDS):
        ours = run(ckpt.write_stream(made).restoreFrom(savepoint.path), tmp_path / "ours")
    native = run_native("native")
    assert native
    check_same(ours, native)
    check_same(sorted([*earlier, *ours], key=str), run_native("never_stopped"))


def named_operators(message: str) -> list[tuple[int, str]]:
    """Return ids and names of the operators that an error lists; ``seen`` is of the second."""
    listed = message.split(" for each of ")[1].split("; ")
    return [(int(each.split()[0]), "users" if "'seen'" in each else "sizes") for each in listed]


def test_arguments(tmp_path: Path, spark: SparkSession) -> None:
    made_of = partial(
        ckpt.location(tmp_path).import_checkpoint, directory=str(tmp_path), spark=spark
    )
    one = ckpt.ImportedOperator(Users(), "users")
    with pytest.raises(ckpt.errors.PlanError, match="give processor and uid"):
        made_of()
    with pytest.raises(ckpt.errors.PlanError, match="leave these arguments out"):
        made_of(operators={0: one}, uid="users")
    with pytest.raises(ckpt.errors.PlanError, match="has a uid twice: 'users', 'users'"):
        made_of(operators={0: one, 1: one})
    with pytest.raises(ckpt.errors.PlanError, match="give the operator a stable name"):
        ckpt.ImportedOperator(Users(), " ")
