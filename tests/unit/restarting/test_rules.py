"""Rules that give a running query other subtasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.restarting.rules import Load, RescaleRules, load_of
from pyspark_ckpt.settings import read_settings

RULES = RescaleRules(
    fewest=2, most=8, up_ms=1_000, up_rows_behind=None, down_ms=400, window=3, interval_ms=60_000
)


def loads(*durations_ms: int, behind: int | None = None) -> list[Load]:
    return [Load(epoch, ms, behind) for epoch, ms in enumerate(durations_ms)]


@pytest.mark.parametrize(
    ("durations_ms", "parallelism", "wanted"),
    [
        ((1_001, 1_001), 4, None),  # too few epochs
        ((1_001, 1_001, 1_001), 4, 8),
        ((5, 1_001, 1_001, 1_001), 4, 8),  # only the last ones
        ((1_001, 5, 1_001), 4, 8),  # one outlier says nothing
        ((5_000, 700, 700), 4, None),
        ((1_000, 1_000, 1_000), 4, None),
        ((1_001, 1_001, 1_001), 5, 8),  # the most
        ((1_001, 1_001, 1_001), 8, None),
        ((399, 399, 399), 4, 2),
        ((399, 399, 399), 7, 3),
        ((399, 399, 399), 3, 2),  # the fewest
        ((399, 399, 399), 2, None),
        ((400, 400, 400), 4, None),
        ((1_001, 1_001, 1_001), 20, None),  # beyond the bounds it is left alone
        ((399, 399, 399), 1, None),
    ],
)
def test_the_time_of_epochs(
    durations_ms: tuple[int, ...], parallelism: int, wanted: int | None
) -> None:
    found = RULES.proposal(parallelism, loads(*durations_ms))
    assert (found and found.parallelism) == wanted
    if found is not None:
        assert f"epochs {len(durations_ms) - 3} to {len(durations_ms) - 1}" in found.reason


def test_a_backlog_in_all_epochs_gives_more() -> None:
    rules = replace(RULES, up_rows_behind=100)
    found = rules.proposal(4, loads(5, 5, 5, behind=100))
    assert found is not None
    assert found.parallelism == 8
    assert "were 100 rows behind" in found.reason
    fewer = rules.proposal(4, [*loads(5, 5, behind=100), Load(2, 5, 99)])
    assert fewer is not None
    assert fewer.parallelism == 2
    assert RULES.proposal(4, loads(700, 700, 700, behind=10**9)) is None


@given(
    st.integers(1, 40),
    st.integers(1, 3_000),
    st.integers(1, 8),
)
def test_what_was_changed_is_not_changed_back(parallelism: int, ms: int, fewest: int) -> None:
    """If half of the subtasks take up to twice the time, and twice as many not below half of it."""
    rules = replace(RULES, fewest=fewest, most=8, down_ms=500)
    found = rules.proposal(parallelism, loads(ms, ms, ms))
    if found is None:
        return
    share = parallelism / found.parallelism
    again = rules.proposal(found.parallelism, loads(*[max(1, int(ms * share))] * 3))
    is_more = found.parallelism > parallelism
    if parallelism % 2 == 0 or is_more:
        assert again is None or (again.parallelism > found.parallelism) is is_more


INTERNAL = "spark.ckpt.internal.rescale."


def of(conf: dict[str, str], *, can_be_built: bool = True) -> RescaleRules | None:
    full = {
        key if key.startswith(INTERNAL) else f"spark.ckpt.rescale.{key}": value
        for key, value in conf.items()
    }
    return RescaleRules.of(read_settings(full, {}), can_be_built=can_be_built)


def test_there_are_none_by_default() -> None:
    assert of({"max-parallelism": "4"}) is None
    assert of({}, can_be_built=False) is None


def test_rules_of_settings() -> None:
    found = of({"enabled": "true", "max-parallelism": "4", INTERNAL + "window": "7"})
    assert found == RescaleRules(1, 4, 30_000, None, 5_000, 7, 600_000)


@pytest.mark.parametrize(("up", "down"), [("60s", 10_000), ("1ms", 0)])
def test_what_is_short_is_a_sixth_of_what_is_long(up: str, down: int) -> None:
    found = of({"enabled": "true", "max-parallelism": "4", "scale-up.epoch-duration": up})
    assert found is not None
    assert found.down_ms == down


@pytest.mark.parametrize(
    ("conf", "can_be_built", "said"),
    [
        ({}, True, "max-parallelism"),
        ({"max-parallelism": "2", INTERNAL + "min-parallelism": "3"}, True, "at least 3"),
        ({"max-parallelism": "4"}, False, "function"),
        (
            {"max-parallelism": "4", INTERNAL + "scale-down.epoch-duration": "15001ms"},
            True,
            "at most half",
        ),
    ],
)
def test_rules_that_contradict_each_other(
    conf: dict[str, str], can_be_built: bool, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        of({"enabled": "true", **conf}, can_be_built=can_be_built)


def progress(rows: int, *metrics: Any) -> dict[str, Any]:
    sources = [{"numInputRows": rows, "metrics": each} for each in metrics or (None,)]
    return {"batchId": 7, "durationMs": {"triggerExecution": 12}, "sources": sources}


def test_reports_of_epochs() -> None:
    assert load_of(progress(0)) is None
    assert load_of(progress(3)) == Load(7, 12, None)
    kafka = {"maxOffsetsBehindLatest": "41", "avgOffsetsBehindLatest": "20.5"}
    assert load_of(progress(3, kafka, None, {"maxOffsetsBehindLatest": "x"})) == Load(7, 12, 41)


@pytest.mark.parametrize(
    ("read", "newest", "behind"),
    [
        ({"t": {"0": 3, "1": 5}}, {"t": {"0": 10, "1": 5}}, 7),
        ({"t": {"0": 3}}, {"t": {"0": 3, "1": 4}, "u": {"0": 2}}, 6),  # new partitions
        ({"t": {"0": 3}}, {"t": {"0": 2}}, 0),
        ({"logOffset": 3}, {"logOffset": 9}, None),  # Spark's file source: no rows
        (3, 9, None),  # a rate
        ({"t": {"a": 3}}, {"t": {"a": 9}}, None),
        ({"t": {"0": 3}}, None, None),
        ({}, {}, None),
    ],
)
def test_backlogs_by_offsets(read: Any, newest: Any, behind: int | None) -> None:
    """For sources that report offsets as Kafka's, and no backlog, as those in Python."""
    source = {"numInputRows": 1, "metrics": {}, "endOffset": read, "latestOffset": newest}
    report = {"batchId": 7, "durationMs": {"triggerExecution": 12}, "sources": [source]}
    assert load_of(report) == Load(7, 12, behind)
