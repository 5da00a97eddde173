"""Rests of a page: as long as its thread had to wait, and none on an idle machine."""

import threading
import time
from pathlib import Path

import pytest

from pyspark_ckpt.console.data import states as pace
from pyspark_ckpt.console.data.states import Pace


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The rests of this thread; other threads of the process go on as they do."""
    found: list[float] = []
    thread, real = threading.get_ident(), time.sleep

    def sleep(duration_s: float) -> None:
        if threading.get_ident() == thread:
            found.append(duration_s)
        else:
            real(duration_s)

    monkeypatch.setattr(time, "sleep", sleep)
    return found


def test_it_rests_four_times_as_long_as_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    statistics = tmp_path / "schedstat"
    monkeypatch.setattr(pace, "_STATISTICS", statistics)
    statistics.write_text("5 7000000000 1\n")
    page = Pace()
    page.rest()
    statistics.write_text("900 7050000000 2\n")
    page.rest()
    page.rest()
    statistics.write_text("900 9050000000 2\n")
    page.rest()
    assert slept == [pytest.approx(0.2), 1.0]


@pytest.mark.parametrize("text", ["", "5\n", "a b c\n", None])
def test_it_never_rests_where_the_system_does_not_say_how_long_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept: list[float], text: str | None
) -> None:
    statistics = tmp_path / "schedstat"
    if text is not None:
        statistics.write_text(text)
    monkeypatch.setattr(pace, "_STATISTICS", statistics)
    Pace().rest()
    assert slept == []


@pytest.mark.skipif(not pace._STATISTICS.exists(), reason="the system does not say it")
def test_the_system_says_how_long_a_thread_waited() -> None:
    before = pace._waited_ns()
    assert before >= 0
    assert pace._waited_ns() >= before
