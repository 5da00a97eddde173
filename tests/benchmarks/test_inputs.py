"""Input data is the same everywhere and as the workloads say; so is the expected output."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.runs.case import Workload
from benchmarks.runs.input_files import read_files
from benchmarks.workloads import counting, nexmark, sessions
from benchmarks.workloads.known import WORKLOADS
from benchmarks.workloads.nexmark_events import AUCTION, BID, PERSON, events_of
from benchmarks.workloads.session_processors import merged
from benchmarks.workloads.wide_state import categories_by_epoch

SCALE = 0.001


@pytest.fixture(params=list(WORKLOADS))
def workload(request: pytest.FixtureRequest) -> Workload:
    return WORKLOADS[request.param](SCALE)


def test_input_is_the_same_each_time_and_in_order(workload: Workload, tmp_path: Path) -> None:
    for case in workload.cases:
        first = case.write(tmp_path / case.name / "first", 2).of(2)
        second = case.write(tmp_path / case.name / "second", 3).of(3)
        for number, file in enumerate(first[:2]):
            pd.testing.assert_frame_equal(pd.read_parquet(file), pd.read_parquet(second[number]))
        times = [file.stat().st_mtime for file in second]
        assert times == sorted(set(times)), "Spark takes files by their time"


def test_something_is_expected_of_every_run(workload: Workload, tmp_path: Path) -> None:
    for case in workload.cases:
        files = case.write(tmp_path / case.name, 2).of(2)
        expected = case.expected(files)
        assert len(expected)
        assert set(case.output) <= set(expected.columns)
        for contender in case.contenders:
            own = getattr(contender, "expected", None)
            if own is not None:
                assert len(own(files)), contender.name


def test_targets_and_references_are_contenders() -> None:
    for make in WORKLOADS.values():
        alone, with_programs = make(1), make(1, with_programs=True)
        turns = {
            (case.name, contender.name)
            for one in (alone, with_programs)
            for case in one.cases
            for contender in case.contenders
        }
        for target in alone.targets:
            assert {target.ours, target.other} <= turns
        assert set(alone.references) <= {name for _, name in turns}


def test_running_counts_are_those_of_a_dictionary(tmp_path: Path) -> None:
    files = WORKLOADS["W1"](SCALE).cases[0].write(tmp_path, 3).of(3)
    state: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    rows = set()
    for file in files:
        epoch = pd.read_parquet(file)
        for key, value in zip(epoch["key"].tolist(), epoch["value"].tolist(), strict=True):
            state[key] = (state[key][0] + 1, state[key][1] + value)
        rows |= {(key, *state[key]) for key in epoch["key"].tolist()}
    expected = counting.running_counts(files)
    assert set(expected.itertuples(index=False, name=None)) == rows
    last = counting.last_counts(expected)
    assert {key: (n, total) for key, n, total in last.itertuples(index=False)} == state


def test_a_category_continues_to_count_over_epochs(tmp_path: Path) -> None:
    files = WORKLOADS["W3"](SCALE).cases[0].write(tmp_path, 3).of(3)
    rows, expected = read_files(files), categories_by_epoch(files)
    last = expected.sort_values("epoch").groupby(["key", "category"]).tail(1)
    whole = rows.groupby(["key", "category"])["value"].agg(["size", "sum"])
    found = last.set_index(["key", "category"])[["n", "total"]].sort_index()
    assert (found.to_numpy() == whole.to_numpy()).all()


def test_events_come_out_of_order_but_never_late(tmp_path: Path) -> None:
    files = sessions.write_sessions(200, tmp_path, 6)
    watermark_ms = 0
    for number, file in enumerate(files.of(6)):
        times = pd.read_parquet(file)["time_ms"]
        assert times.min() > watermark_ms, "no row is late"
        if number < 6:
            assert not times.is_monotonic_increasing
        watermark_ms = times.max() - 2 * sessions.LATEST_MS


def test_sessions_are_those_of_a_merge_row_by_row(tmp_path: Path) -> None:
    files = sessions.write_sessions(50, tmp_path, 12).of(12)
    by_key: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for key, time in read_files(files[:-1]).itertuples(index=False):
        by_key[key] = merged([*by_key[key], (time, time, 1)], sessions.GAP_MS)
    rows = {(key, *session) for key, found in by_key.items() for session in found}
    expected = sessions.closed_sessions(sessions.GAP_MS, files)
    assert set(expected.itertuples(index=False, name=None)) == rows
    assert len(expected) > expected["key"].nunique(), "some keys come back"


def test_a_late_row_joins_two_sessions() -> None:
    apart = [(0, 5, 2), (20, 25, 3)]
    assert merged(apart, 10) == apart
    assert merged([*apart, (13, 13, 1)], 10) == [(0, 25, 6)]
    assert merged([(0, 0, 1), (10, 10, 1)], 10) == [(0, 10, 2)]
    assert merged([(0, 0, 1), (11, 11, 1)], 10) == [(0, 0, 1), (11, 11, 1)]


def test_nexmark_has_its_proportions() -> None:
    events = pd.concat([events_of(5_000, epoch) for epoch in range(3)], ignore_index=True)
    assert events["kind"].value_counts().to_dict() == {PERSON: 300, AUCTION: 900, BID: 13_800}
    assert events["time_ms"].is_monotonic_increasing
    persons, auctions, bids = (events[events["kind"] == kind] for kind in (PERSON, AUCTION, BID))
    assert persons["id"].tolist() == list(range(1_000, 1_300))
    assert auctions["id"].tolist() == list(range(1_000, 1_900))
    hot = (bids["auction"] % 100 == 0).mean()
    assert 0.4 < hot < 0.6
    assert not auctions["seller"].isna().any()
    assert events["price"].isna().sum() == len(persons) + len(auctions)


def test_nexmark_expectations_by_hand(tmp_path: Path) -> None:
    files = nexmark.write_events(2_000, tmp_path, 2).of(2)
    events = read_files(files[:-1])
    bids = events[events["kind"] == BID]
    assert nexmark.bid_counts(files)["n"].sum() == 5 * len(bids)
    assert nexmark.bidder_sessions(files)["n"].sum() == len(bids)
    assert nexmark.highest_bids(files)["price"].max() == bids["price"].max()
    assert nexmark.new_sellers(files)["id"].is_unique
    items = nexmark.local_items(files)
    assert set(items["state"]) <= {"OR", "ID", "CA"}
    assert items["auction"].is_unique
