"""Rows of two programs become differences: as multisets, by key, within a tolerance."""

from __future__ import annotations

import math
import random
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.shadowing.report import MOST_KEPT, Rules, ShadowDifference, Tally, pair_rows, same


def pairs(
    old: list[dict[str, Any]],
    new: list[dict[str, Any]],
    keys: tuple[str, ...] = ("k",),
    tolerance: float = 0.0,
) -> list[Any]:
    return list(pair_rows(old, new, keys, tolerance))


def test_one_row_in_20_000_is_found_in_another_order() -> None:
    old = [{"k": f"k{n}", "n": n, "at": [n, {"x": n}]} for n in range(20_000)]
    new = [dict(row) for row in old]
    random.Random(3).shuffle(new)
    assert pairs(old, new) == []
    next(row for row in new if row["k"] == "k7777")["n"] = -1
    assert pairs(old, new) == [
        (
            {"k": "k7777"},
            {"n": 7777, "at": [7777, {"x": 7777}]},
            {"n": -1, "at": [7777, {"x": 7777}]},
        )
    ]


def test_equal_rows_count_as_often_as_they_are_there() -> None:
    row = {"k": "a", "n": 1}
    assert pairs([row, row, row], [row, row]) == [({"k": "a"}, {"n": 1}, None)]
    assert pairs([row], [row, row]) == [({"k": "a"}, None, {"n": 1})]


def test_rows_of_one_key_are_paired_and_the_rest_is_added_or_removed() -> None:
    old = [{"k": "a", "n": n} for n in (1, 2, 3)]
    new = [{"k": "a", "n": n} for n in (4, 2)]
    assert pairs(old, new) == [
        ({"k": "a"}, {"n": 1}, {"n": 4}),
        ({"k": "a"}, {"n": 3}, None),
    ]


def test_without_keys_no_row_is_paired_with_another() -> None:
    assert pairs([{"n": 1}], [{"n": 2}], keys=()) == [({}, {"n": 1}, None), ({}, None, {"n": 2})]


@pytest.mark.parametrize("keys", [("k",), ()])
def test_fractions_are_equal_within_the_tolerance(keys: tuple[str, ...]) -> None:
    old = [{"k": "a", "x": 1e9, "n": 1}, {"k": "a", "x": 5.0, "n": 1}]
    new = [{"k": "a", "x": 5.0 + 1e-12, "n": 1}, {"k": "a", "x": 1e9 + 1e-3, "n": 1}]
    assert len(pairs(old, new, keys)) in (2, 4)
    assert pairs(old, new, keys, 1e-11) == []


def test_many_rows_of_one_key_within_the_tolerance() -> None:
    old = [{"k": "a", "x": float(n)} for n in range(1000)]
    new = [{"k": "a", "x": n + 1e-7} for n in reversed(range(1000))]
    assert pairs(old, new, tolerance=1e-6) == []
    new[3]["x"] = -5.0
    assert pairs(old, new, tolerance=1e-6) == [({"k": "a"}, {"x": 996.0}, {"x": -5.0})]


def test_numbers_that_are_not_numbers() -> None:
    nan, inf = float("nan"), float("inf")
    assert same({"x": [nan]}, {"x": [nan]}, 0.0)
    assert not same(inf, -inf, 0.5)
    assert not same(inf, 1.0, 0.5)
    assert not same(nan, 1.0, 0.5)
    assert not same(None, 0.0, 0.5)
    assert not same(1, 2, 0.9)  # whole numbers have no tolerance
    assert pairs([{"k": nan, "n": 1}], [{"k": math.nan, "n": 1}]) == []


@pytest.mark.parametrize("others", [0, 600])
def test_decimals_are_compared_with_all_their_digits(others: int) -> None:
    old, new = Decimal("12345678901234.123456"), Decimal("12345678901234.123457")
    assert float(old) == float(new)
    rows = [
        [{"k": "a", "x": [{"y": each}], "z": each}]
        + [{"k": "a", "x": [{"y": Decimal(n)}], "z": each + n} for n in range(1, others)]
        for each in (old, new)
    ]
    assert len(pairs(*rows)) == max(1, others)
    assert pairs(*rows, tolerance=1e-12) == []
    assert pairs(rows[0], list(reversed(rows[0]))) == []
    assert same(Decimal("1.0"), Decimal("1.00"), 0.0)
    assert same(Decimal("0.5"), 0.5, 0.0)
    assert not same(Decimal("0.5"), None, 0.5)
    largest = Decimal("9" * 38)
    assert not same(largest, largest - 1, 0.0)
    assert same(largest, largest - 1, 1e-37)
    assert not same(Decimal("1e-38"), Decimal(0), 1e-39)


def test_instants_of_the_hour_that_comes_twice() -> None:
    # Spark's rows have times of the local zone without a zone.
    first, second = (datetime.fromisoformat("2024-10-27 02:30").replace(fold=n) for n in (0, 1))
    assert pairs([{"k": 1, "at": first}], [{"k": 1, "at": second}]) == [
        ({"k": 1}, {"at": first}, {"at": second})
    ]
    assert len(pairs([{"k": first}], [{"k": second}])) == 2
    assert pairs([{"k": second, "at": second}], [{"k": second, "at": second}]) == []


def test_a_difference_names_key_columns_and_values() -> None:
    changed = ShadowDifference(7, "op.n", {"k": "a"}, {"n": 1, "m": 2}, {"n": 3, "m": 2})
    assert changed.columns == ("n",)
    assert str(changed) == "epoch 7, op.n, k='a': n 1 -> 3"
    added = ShadowDifference(7, "output", {}, None, {"n": 3})
    assert (added.change, added.columns) == ("added", ())
    assert str(added) == "epoch 7, output: added n=3"


def difference(key: object, old: object, new: object) -> ShadowDifference:
    return ShadowDifference(1, "output", {"k": key}, {"n": old}, {"n": new})


def test_a_report_counts_all_and_names_the_first() -> None:
    tally = Tally(Rules(max_differences=MOST_KEPT + 5))
    for number in range(MOST_KEPT + 5):
        assert tally.has_enough is None
        tally.add(difference(number, 0, "<b>"))
    assert "max_differences" in str(tally.has_enough)
    tally.note("a note")
    tally.end_epoch(1, 9, compared_states=True)
    report = tally.report()
    assert (report.differences, len(report.samples)) == (MOST_KEPT + 5, MOST_KEPT)
    assert report.counts == {("output", "changed"): MOST_KEPT + 5}
    assert not report.is_equal
    text = repr(report)
    assert "1 epochs (1 to 1), 9 rows, states compared 1 times: 1005 differences" in text
    assert "note: a note" in text
    assert "k=0" in text
    assert "and 985 more" in text
    page = report._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>'" not in page
    assert len(page) < 20_000
    assert list(report.to_pandas().loc[0, ["change", "key"]]) == ["changed", {"k": 0}]


def test_expected_differences_are_only_counted() -> None:
    tally = Tally(Rules(expected=lambda each: each.new == {"n": 2}))
    tally.add(difference("a", 1, 2))
    tally.add(difference("b", 1, 3))
    report = tally.report()
    assert (report.differences, report.expected) == (1, 1)
    assert [each.key for each in report.samples] == [{"k": "b"}]


def test_an_entry_that_differed_as_expected_may_differ_otherwise_later() -> None:
    tally = Tally(Rules(expected=lambda each: each.new == {"n": 2 * (each.old or {})["n"]}))
    for epoch, (old, new) in enumerate([(1, 2), (2, 4), (3, -1), (4, 8), (5, -2)], 1):
        tally.add_entry(ShadowDifference(epoch, "op.n", {"k": "a"}, {"n": old}, {"n": new}))
        tally.end_epoch(epoch, 1, compared_states=True)
        report = tally.report()
        assert (report.expected, report.differences) == (1, int(epoch > 2))
    assert [(each.epoch, each.new) for each in report.samples] == [(3, {"n": -1})]
    assert not report.is_equal


def test_an_entry_that_differs_counts_once() -> None:
    tally = Tally(Rules())
    for epoch in range(3):
        tally.add_entry(ShadowDifference(epoch, "op.n", {"k": "a"}, {"n": 1}, {"n": 2}))
        tally.add_entry(ShadowDifference(epoch, "op.list", {}, {"n": [1]}, None))
    assert tally.report().differences == 2


def test_agreement_is_not_proven_if_something_failed() -> None:
    tally = Tally(Rules())
    tally.end_epoch(1, 5, compared_states=True)
    tally.stop("stop was called")
    assert tally.report().is_equal
    tally.fail("the candidate failed in epoch 2: ZeroDivisionError")
    report = tally.report()
    assert (report.is_equal, report.stopped) == (False, "stop was called")
    assert report.unproven == "the candidate failed in epoch 2: ZeroDivisionError"
    assert "The two programs agree" not in report._repr_html_()


def test_agreement_is_proven_only_if_all_was_compared() -> None:
    tally = Tally(Rules())
    assert "no epoch" in str(tally.report().unproven)
    tally.end_epoch(1, 5, compared_states=False)
    assert "no state was compared" in str(tally.report().unproven)
    tally.end_epoch(2, 5, compared_states=True)
    assert tally.report().is_equal
    tally.note("n is int in the original and bigint in the candidate: compared as bigint")
    assert tally.report().is_equal
    tally.skip("op.other: not compared, because only the candidate has it")
    report = tally.report()
    assert (report.is_equal, report.differences) == (False, 0)
    assert "op.other" in str(report.unproven)
    assert "1 parts were not compared" in repr(report)
    assert "not compared as a whole" in report._repr_html_()


def test_it_has_enough_after_some_epochs() -> None:
    tally = Tally(Rules(epochs=2))
    tally.end_epoch(5, 1, compared_states=False)
    assert tally.has_enough is None
    tally.end_epoch(6, 1, compared_states=True)
    assert tally.has_enough == "2 epochs were compared"
    report = tally.report()
    assert (report.first_epoch, report.last_epoch, report.state_comparisons) == (5, 6, 1)


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"states_every": 1.5}, "states_every is 1.5"),
        ({"tolerance": -1.0}, "tolerance is -1.0"),
        ({"ignore": frozenset({"n"})}, "ignore has 'n'"),
    ],
)
def test_rules_that_make_no_sense_are_refused(arguments: dict[str, Any], mentions: str) -> None:
    with pytest.raises(ckpt.errors.ConfigurationError, match=mentions):
        Rules(**arguments)
