"""Captured epochs run again without Spark: bit for bit, and with the differences by key."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt import ArrowProcessor, BatchProcessor
from pyspark_ckpt.errors import CorruptFileError, HarnessUseError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.capture.capture_file import (
    CAPTURE_FORMAT_VERSION,
    MAGIC,
    SectionName,
    decode_parts,
    encode_part,
)
from pyspark_ckpt.operator.capture.recording import in_arrow, in_changes
from pyspark_ckpt.testing import replay
from state_backends import BACKEND_TYPES
from tests.unit.testing.captured_query import CapturedQuery, Query
from tests.unit.testing.everything import Everything
from tests.unit.testing.programs import program
from tests.unit.testing.stored_pickles import STREAMS, pickles_in_capture

each_backend = pytest.mark.parametrize("backend", BACKEND_TYPES)


class Doubled(Everything):
    step = 2


def everything(make: Query, backend: str) -> CapturedQuery:
    query = make(Everything(), backend, time_mode=TimeMode.PROCESSING_TIME)
    query.epoch([("a", 1), ("b", 2), ("a", 3)], rules=[("all", 50)])
    query.epoch([("a", 4)], [("c", 0), ("c", 70)])
    query.epoch(rules=[("all", 60)])
    query.epoch([("b", 90), ("ö", 5)])
    query.epoch()
    query.epoch([("a", 6)])
    return query


@each_backend
def test_unchanged_code_gives_the_same_bit_for_bit(captured: Query, backend: str) -> None:
    query = everything(captured, "heap")
    result = replay(query.save(), Everything(), backend=backend)
    result.assert_same()
    assert result
    assert result.epochs == [0, 1, 2, 3, 4, 5]
    sent = [tuple(row.values()) for rows in query.outputs for row in rows]
    assert [(row.k, row.n) for row in result.output.itertuples()] == sent
    assert result.output.equals(result.captured_output)


@each_backend
def test_what_rocksdb_captured_is_the_same_too(captured: Query, backend: str) -> None:
    replay(everything(captured, "rocksdb").save(), Everything(), backend=backend).assert_same()


def test_changed_code_gives_the_differences_by_key(captured: Query) -> None:
    query = everything(captured, "heap")
    result = replay(query.save(), Doubled())
    outputs = sorted(
        (each.epoch, each.key, each.old["n"], each.new["n"])
        for each in result.differences
        if each.where == "output"
    )
    assert outputs == [
        (0, ("a",), 4, 8),
        (0, ("b",), 2, 4),
        (1, ("a",), 8, 16),
        (3, ("b",), 62, 64),
        (3, ("ö",), 5, 10),
        (5, ("a",), 14, 28),
    ]
    states = {
        (each.epoch, each.key, each.where, each.columns)
        for each in result.differences
        if each.where != "output"
    }
    by_timers = {(2, ("a",)), (2, ("b",)), (3, ("a",)), (5, ("b",)), (5, ("ö",))}
    changed = {(epoch, key) for epoch, key, *_ in outputs} | by_timers
    assert states == {(*each, "state 'total'", ("n", "mean")) for each in changed}
    with pytest.raises(AssertionError, match=r"epoch 0, key \('b',\), output: n 2 -> 4"):
        result.assert_same()


def test_epochs_between_may_be_missing(captured: Query) -> None:
    query = everything(captured, "heap")
    parts = query.files()
    for file in (parts[1], parts[4]):
        file.unlink()
    result = replay(query.save(), Everything())
    result.assert_same()
    assert result.epochs == [0, 2, 3, 5]
    first = [each for each in replay(query.save(), Doubled()).differences if each.epoch == 5]
    assert ("output", 14, 20) in [
        (each.where, each.old["n"], each.new["n"]) for each in first if each.old and "n" in each.old
    ]  # the replay's own 8 and 12: what differs goes on with its own value


class Frames(StatefulProcessor):
    more = 0

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = (self.count.get() or (0,))[0] + sum(int(frame["v"].sum()) for frame in rows) + self.more
        self.count.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


class Batches(BatchProcessor):
    more = 0

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = self.count.getMany(keys)["n"].fillna(0) + rows.groupby(level=0)["v"].sum() + self.more
        self.count.updateMany(keys, n.astype("int64").to_frame("n"))
        yield keys.assign(n=n.astype("int64"))

    def close(self) -> None:
        pass


class Tables(ArrowProcessor):
    more = 0

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        sums = rows.group_by("key_position").aggregate([("v", "sum")]).sort_by("key_position")
        n = pc.add(pc.fill_null(self.count.getMany(keys).column("n"), 0), sums.column("v_sum"))
        n = pc.add(n, self.more)
        self.count.updateMany(keys, pa.table({"n": n}))
        yield keys.append_column("n", n)

    def close(self) -> None:
        pass


@each_backend
@pytest.mark.parametrize(
    ("mode", "kind"), [("pandas", Frames), ("batches", Batches), ("arrow", Tables)]
)
def test_each_way_of_getting_rows(captured: Query, backend: str, mode: str, kind: type) -> None:
    query = captured(kind(), mode=mode)
    query.epoch([("a", 1), ("b", 2), ("a", 3)])
    query.epoch([("b", 4)], [("c", 5)])
    replay(query.save(), kind(), backend=backend).assert_same()
    changed = kind()
    changed.more = 1
    result = replay(query.save(), changed, backend=backend)
    rows = sorted(
        (each.epoch, each.new["k"], each.old["n"], each.new["n"])
        for each in result.differences
        if each.where == "output"
    )
    assert rows == [(0, "a", 4, 5), (0, "b", 2, 3), (1, "b", 6, 8), (1, "c", 5, 6)]
    states = sorted(
        (each.epoch, each.key, each.old["n"], each.new["n"])
        for each in result.differences
        if each.where == "state 'count'"
    )
    assert states == [(0, ("a",), 4, 5), (0, ("b",), 2, 3), (1, ("b",), 6, 8), (1, ("c",), 5, 6)]


class OtherStates(Everything):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.extra = handle.getValueState("extra", "n long")
        super().init(handle)
        self.total = _Wider(handle)


class _Wider:
    def __init__(self, handle: Any) -> None:
        self._state = handle.getValueState("wide", "n long, mean double")

    def get(self) -> Any:
        return self._state.get()

    def update(self, value: Any) -> None:
        self._state.update(value)


def test_other_states_are_compared_by_name(captured: Query) -> None:
    query = captured(Everything(), time_mode=TimeMode.PROCESSING_TIME)
    query.epoch([("a", 1)])
    query.epoch([("a", 2)])
    result = replay(query.save(), OtherStates())
    found = {(each.epoch, each.where, each.old is None) for each in result.differences}
    assert (0, "state 'wide'", True) in found
    assert (0, "state 'total'", False) in found


class OldAndNew(StatefulProcessor):
    """The columns of a map's keys begin as those of changed values do."""

    step = 1

    def init(self, handle: Any) -> None:
        self.seen = handle.getMapState("seen", "old_v long, new_v long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.seen.updateValue((row.v, 2), (row.v * self.step,))
        return iter(())

    def close(self) -> None:
        pass


class OldAndNewTwice(OldAndNew):
    step = 2


def test_a_place_may_have_columns_of_any_name(captured: Query) -> None:
    query = captured(OldAndNew())
    query.epoch([("a", 5)])
    (found,) = replay(query.save(), OldAndNewTwice()).differences
    assert (found.key, found.place) == (("a",), {"old_v": 5, "new_v": 2})
    assert (found.old, found.new) == ({"n": 5}, {"n": 10})


class Digits(StatefulProcessor):
    """Yield the value of each row, and null for 0."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], n=row.v or None)

    def close(self) -> None:
        pass


def test_an_integer_beside_a_null_keeps_its_digits(captured: Query) -> None:
    """A frame of doubles would not have 2**60 + 1; nulls may also be in a separate epoch."""
    query = captured(Digits())
    query.epoch([("a", 0), ("a", 2**60 + 1)])
    query.epoch([("a", 0)])
    query.epoch([("a", 2**60 + 1)])
    result = replay(query.save(), Digits())
    for frame in (result.output, result.captured_output):
        assert frame["n"].tolist() == [None, 2**60 + 1] * 2


def test_too_large_an_epoch_is_left_out_and_says_so(captured: Query) -> None:
    query = captured(Everything(), time_mode=TimeMode.PROCESSING_TIME, limit_bytes=100)
    query.epoch([("a", number) for number in range(100)])
    with pytest.raises(HarnessUseError, match=r"more than 100 bytes: capture an epoch that has"):
        replay(query.save(), Everything())
    assert query.files()[0].stat().st_size < 10_000


def test_a_processor_of_another_kind_is_refused(captured: Query) -> None:
    query = captured(Frames(), mode="pandas")
    query.epoch([("a", 1)])
    with pytest.raises(HarnessUseError, match="a processor of the same kind"):
        replay(query.save(), Batches())
    with pytest.raises(HarnessUseError, match="no capture of operator 'other'"):
        replay(query.save(), Frames(), uid="other")
    with pytest.raises(HarnessUseError, match="use one of"):
        replay(query.save(), Frames(), backend="disk")


def test_a_damaged_capture_is_refused(captured: Query) -> None:
    query = captured(Frames(), mode="pandas")
    query.epoch([("a", 1), ("b", 2)])
    file = query.save()
    whole = file.read_bytes()
    assert b"pickle" not in whole
    for place in range(len(MAGIC), len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        file.write_bytes(bytes(damaged))
        with pytest.raises(CorruptFileError):
            replay(file, Frames())
    for length in range(1, len(whole), 211):
        file.write_bytes(whole[:length])
        with pytest.raises(CorruptFileError):
            replay(file, Frames())


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("section", [SectionName.ROWS, SectionName.AFTER])
def test_a_capture_has_no_pickle_and_one_would_be_seen(
    captured: Query, protocol: int, section: SectionName
) -> None:
    query = captured(Frames(), mode="pandas")
    query.epoch([("a", 1)])
    file = query.save()
    assert pickles_in_capture(file) == []
    planted = pickle.dumps({"values": [1, 2]}, protocol)
    batch = pa.RecordBatch.from_pydict({"v": pa.array([b"before " + planted])})
    content = in_arrow([batch]) if section in STREAMS else in_changes([(b"key", b"1" + planted)])
    with file.open("rb") as source:
        (part,) = decode_parts(source, "it")
    file.write_bytes(b"".join(encode_part(part.epoch, {**part.sections, section: content})))
    (found,) = pickles_in_capture(file)
    assert found.startswith(planted)


def test_a_newer_format_is_refused_by_name(captured: Query) -> None:
    query = captured(Frames(), mode="pandas")
    query.epoch([("a", 1)])
    file = query.save()
    with file.open("rb") as source:
        (part,) = decode_parts(source, "it")
    newer = msgspec.structs.replace(part.epoch, format_version=CAPTURE_FORMAT_VERSION + 1)
    file.write_bytes(b"".join(encode_part(newer, part.sections)))
    with pytest.raises(CorruptFileError, match=r"newer than this library's 1: upgrade"):
        replay(file, Frames())


def test_a_difference_of_equal_code_says_what_it_may_come_from(captured: Query) -> None:
    query = captured(Frames(), mode="pandas")
    query.epoch([("a", 1)])
    changed = Frames()
    changed.more = 3
    with pytest.raises(AssertionError, match="PYTHONHASHSEED"):
        replay(query.save(), changed).assert_same()


RAISES = """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Raises(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = (self.n.get() or (0,))[0] + sum(row.v for row in rows)
        self.n.update((n,))
        if n < 0:
            raise ValueError(f"{n} of {key[0]}")
        yield Row(k=key[0], n=n)

    def close(self):
        pass
"""


def test_where_the_code_of_a_quarantined_key_is_does_not_matter(
    captured: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same program in another directory, and further down in its file."""

    def made(name: str, source: str) -> StatefulProcessor:
        return program(tmp_path / name, source, "Raises", monkeypatch)

    query = captured(made("one", RAISES), "heap", quarantines=True)
    query.epoch([("a", 1), ("b", -1)])
    query.epoch([("a", 2), ("b", 5)])
    saved = query.save()
    replay(saved, made("other", f"# moved\n{RAISES}")).assert_same()
    changed = replay(saved, made("changed", RAISES.replace("of {key[0]}", "is too little")))
    assert {(each.where, each.key) for each in changed.differences} == {
        ("state '__quarantine'", ("b",))
    }
