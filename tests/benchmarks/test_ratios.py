"""Ratios are taken within a repetition; targets are judged by their median."""

from __future__ import annotations

import pytest

from benchmarks.reports.ratios import Figures, Spread
from benchmarks.runs.case import Figure, Target
from tests.benchmarks.cases import run

OURS, PEER = ("small", "ours"), ("small", "peer")


def target(limit: float, *, at_least: bool = True, other: tuple[str, str] = PEER) -> Target:
    return Target("ours / peer", OURS, other, limit, at_least=at_least)


def figures() -> Figures:
    return Figures(
        [
            {OURS: run(100, 100), PEER: run(100, 200)},
            {OURS: run(100, 1_000), PEER: run(100, 4_000)},
            {OURS: run(100, 10), PEER: run(100, 100)},
        ]
    )


def test_time_is_from_the_first_trigger_to_the_last_commit_with_all_gaps() -> None:
    measured = run(100, 300, 500, gap_ms=200)
    assert measured.seconds == pytest.approx(1.0)
    assert measured.figure(Figure.ROWS_PER_SECOND) == pytest.approx(200)
    assert measured.figure(Figure.MS_PER_EPOCH) == pytest.approx(500)
    assert measured.share_in_triggers == pytest.approx(0.8)
    assert measured.median_epoch_ms == 400


def test_a_ratio_is_the_median_of_those_within_a_repetition() -> None:
    ratio = figures().ratio(OURS, PEER, Figure.ROWS_PER_SECOND)
    assert ratio is not None
    assert [ratio.median, ratio.lowest, ratio.highest] == pytest.approx([4, 2, 10])


def test_as_fast_is_the_same_by_rows_and_by_time() -> None:
    by_rows = figures().times_as_fast(OURS, PEER, Figure.ROWS_PER_SECOND)
    by_time = figures().times_as_fast(OURS, PEER, Figure.MS_PER_EPOCH)
    assert by_rows is not None
    assert by_time is not None
    assert by_rows.median == pytest.approx(by_time.median)


@pytest.mark.parametrize(
    ("limit", "at_least", "reached"),
    [(3.9, True, True), (4.1, True, False), (4.1, False, True), (3.9, False, False)],
)
def test_a_target_is_reached_by_the_median(limit: float, at_least: bool, reached: bool) -> None:
    (verdict,) = figures().verdicts([target(limit, at_least=at_least)])
    assert verdict.is_reached is reached
    assert ("NOT reached" in verdict.text()) is not reached


def test_a_target_without_its_contender_is_left_out() -> None:
    assert figures().verdicts([target(1, other=("small", "absent"))]) == []


def test_a_spread_shows_median_and_both_ends() -> None:
    assert Spread.of([3, 1, 2000]).text(0) == "3 (1 to 2,000)"
