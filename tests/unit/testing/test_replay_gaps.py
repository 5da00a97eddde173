"""Captures in which epochs are missing, or between whose epochs the query was rescaled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.testing import replay
from state_backends import BACKEND_TYPES
from tests.unit.testing.captured_query import GROUPS, RELEASES_ALL, CapturedQuery, Query, group_of
from tests.unit.testing.everything import Everything
from tests.unit.testing.programs import program

each_backend = pytest.mark.parametrize("backend", BACKEND_TYPES)


class Later(Everything):
    """Its timers come a millisecond later."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        for time_ms in list(self.handle.listTimers()):
            self.handle.deleteTimer(time_ms)
            self.handle.registerTimer(time_ms + 1)


def in_time(captured: Query, backend: str = "heap", **more: Any) -> CapturedQuery:
    return captured(Everything(), backend, time_mode=TimeMode.PROCESSING_TIME, **more)


def keys_of(output: list[dict[str, Any]]) -> list[str]:
    return [next(iter(row.values())) for row in output]


@each_backend
def test_a_timer_that_fired_in_a_missing_epoch_does_not_fire_again(
    captured: Query, backend: str
) -> None:
    query = in_time(captured, backend)
    query.epoch([("a", 1), ("b", 2)])
    query.epoch([("b", 3)])
    assert sorted(keys_of(query.epoch())) == ["a", "b"]  # after two minutes
    query.epoch([("c", 4)])
    query.epoch([("a", 5)])
    query.files()[2].unlink()
    result = replay(query.save(), Everything(), backend=backend)
    result.assert_same()
    assert result.epochs == [0, 1, 3, 4]


def test_a_timer_that_was_deleted_in_a_missing_epoch_does_not_fire(captured: Query) -> None:
    query = in_time(captured)
    query.epoch([("a", 1)])
    query.processor = Later()
    query.epoch([("a", 2)], now_ms=1)  # has it come a millisecond later
    query.processor = Everything()
    assert keys_of(query.epoch([("c", 4)], now_ms=120_000)) == ["c"]
    query.files()[1].unlink()
    replay(query.save(), Everything()).assert_same()


def test_a_changed_program_keeps_its_own_timers(captured: Query) -> None:
    """The query's timer of ``a`` fired in the missing epoch; the other program's is not due."""
    query = in_time(captured)
    query.epoch([("a", 1)])
    query.epoch(now_ms=120_000)
    query.epoch([("c", 4)], now_ms=120_000)
    query.epoch([("c", 4)], now_ms=120_001)
    query.files()[1].unlink()
    fired = [
        (each.epoch, each.key, each.new)
        for each in replay(query.save(), Later()).differences
        if each.where == "output"
    ]
    assert fired == [(3, ("a",), {"k": "a", "n": 1_000_001})]


@pytest.mark.parametrize("kind", [Everything, Later])
@each_backend
def test_keys_that_went_to_another_subtask_are_not_followed(
    captured: Query, kind: type[Everything], backend: str
) -> None:
    moved = next(key for key in "abcdef" if group_of(key) >= GROUPS // 2)
    stays = next(key for key in "abcdef" if group_of(key) < GROUPS // 2)
    query = in_time(captured, backend)
    query.epoch([(moved, 1), (stays, 2)])
    query.rescale(2)
    query.epoch([(stays, 3)], now_ms=1)
    query.epoch(now_ms=240_000)
    result = replay(query.save(), kind(), backend=backend)
    assert {each.key for each in result.differences if each.epoch > 0} <= {(stays,)}
    if kind is Everything:
        result.assert_same()


GUARDED = """
from tests.unit.testing.everything import Everything


class Guarded(Everything):
    def handleInputRows(self, key, rows, timerValues):
        rows = list(rows)
        (most,) = self.rules.getValue(("all",))
        if any(row.v > most for row in rows):
            raise ValueError("too much")
        yield from super().handleInputRows(key, iter(rows), timerValues)
"""


@each_backend
@pytest.mark.parametrize("moved", ["", "# moved\n"])
def test_a_key_that_was_released_in_a_missing_epoch_is_not_quarantined(
    captured: Query, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str, backend: str
) -> None:
    guarded = program(tmp_path / "one", GUARDED, "Guarded", monkeypatch)
    query = captured(guarded, backend, time_mode=TimeMode.PROCESSING_TIME, quarantines=True)
    query.epoch([("a", 60), ("b", 90)], rules=[("all", 50)])
    query.epoch([("b", 7)], rules=[("all", 70)], releases=RELEASES_ALL)  # only a is well now
    last = query.epoch([("c", 1)], rules=[("all", 100)], releases=RELEASES_ALL)
    assert keys_of(last) == ["all", "b", "b", "c"]
    query.files()[1].unlink()
    other = program(tmp_path / "other", moved + GUARDED, "Guarded", monkeypatch)
    replay(query.save(), other, backend=backend).assert_same()
