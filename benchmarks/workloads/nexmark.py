"""W6: queries in the manner of Nexmark, each a processor with keyed state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.runs.case import Case, Contender, Epochs, Expected, Kind, Target, Workload
from benchmarks.runs.input_files import read_files
from benchmarks.runs.spark_operators import ARROW, BACKENDS, ROWS, ours, ours_name, pysparks
from benchmarks.workloads import sessions
from benchmarks.workloads.nexmark_arrow import (
    COUNTED,
    HIGHEST,
    WindowCounts,
    WindowsHighestBid,
    counted_slides,
    highest_of_windows,
)
from benchmarks.workloads.nexmark_events import AUCTION, BID, INPUT, PERSON, write_events
from benchmarks.workloads.nexmark_processors import (
    SLIDE_MS,
    WINDOW_MS,
    BidCounts,
    HighestBid,
    LocalItems,
    NewSellers,
)
from benchmarks.workloads.session_arrow import ArrowSessions
from benchmarks.workloads.session_processors import RowsSessions

_EVENTS = 200_000
_WATERMARK = "4 seconds"
_GAP_MS = 10_000
_STATES = ["OR", "ID", "CA"]
_CATEGORY = 10
JVM = "Spark's own operator in the JVM"
_OF_SPARKS_OWN = {"q5": 0.7, "q7": 0.75, "q11": 0.9}
"""How fast a query should be at least, compared with Spark's own operator."""


@dataclass(frozen=True, slots=True)
class _Query:
    name: str
    title: str
    processor: Callable[[], StatefulProcessor]
    key: str
    output: str
    prepare: Callable[[DataFrame], DataFrame]
    expected: Expected
    time_mode: str = "EventTime"
    in_jvm: Callable[[DataFrame], DataFrame] | None = None
    in_arrow: tuple[Callable[[], ckpt.ArrowProcessor], str] | None = None
    """The processor for all keys at once, and its key if it has another one."""
    prepare_in_arrow: Callable[[DataFrame], DataFrame] | None = None


def nexmark(scale: float, *, with_programs: bool = False) -> Workload:
    """Return W6: 200,000 events in 20 s of each epoch."""
    events = max(500, int(_EVENTS * scale))
    return Workload(
        "W6",
        "w6_nexmark",
        "W6: queries in the manner of Nexmark",
        "Persons, auctions and bids as 1 to 3 to 46, with hot sellers, auctions and bidders. Each "
        "query is one processor with keyed state, which PySpark's transformWithState runs "
        "unchanged. Of query 5 it is the counting per auction and window, of query 7 one highest "
        "bid per window. Spark's own operators aggregate in each map task first; the Arrow "
        "processors of queries 5 and 7 have a mapInArrow before them that does so too.",
        [_case(query, events) for query in _queries()],
        references=[JVM, ROWS],
        targets=[
            Target(
                f"rows/s, {query}, {ours_name(mode, 'rocksdb')} / {JVM}",
                (query, ours_name(mode, "rocksdb")),
                (query, JVM),
                limit,
            )
            for query, limit in _OF_SPARKS_OWN.items()
            for mode in (ROWS, ARROW)
        ],
    )


def _case(query: _Query, events: int) -> Case:
    processor, key, output = query.processor, query.key, query.output
    prepare, time_mode = query.prepare, query.time_mode
    contenders = [
        ours(ROWS, processor, key, output, backend, prepare=prepare, time_mode=time_mode)
        for backend in BACKENDS
    ]
    if query.in_arrow is not None:
        all_at_once, its_key = query.in_arrow
        before = query.prepare_in_arrow or prepare
        contenders += [
            ours(ARROW, all_at_once, its_key, output, backend, prepare=before, time_mode=time_mode)
            for backend in BACKENDS
        ]
    if query.in_jvm is not None:
        contenders.append(Contender(JVM, Kind.PEER, query.in_jvm))
    contenders.append(pysparks(ROWS, processor, key, output, prepare=prepare, time_mode=time_mode))
    return Case(
        query.name,
        f"{query.title}; {events:,} events per epoch",
        INPUT,
        [field.split()[0] for field in query.output.split(", ")],
        partial(write_events, events),
        query.expected,
        contenders,
        epochs=Epochs(5, 2),
        slow_epochs=Epochs(2, 1),
    )


def _queries() -> Sequence[_Query]:
    bid_sessions = partial(sessions.session_windows, _GAP_MS)
    return [
        _Query(
            "q3",
            "Query 3, local items: persons of three states joined with their auctions",
            LocalItems,
            "person",
            "name string, city string, state string, auction long",
            _sellers_and_items,
            local_items,
            time_mode="None",
        ),
        _Query(
            "q5",
            "Query 5, hot items: bids per auction in windows of 10 s that slide by 2 s",
            BidCounts,
            "auction",
            "auction long, start_ms long, n long",
            _bids,
            bid_counts,
            in_jvm=_counted_by_window,
            in_arrow=(WindowCounts, "auction, start_ms"),
            prepare_in_arrow=_counts_of_windows,
        ),
        _Query(
            "q7",
            "Query 7, highest bid: one per window of 10 s",
            HighestBid,
            "start_ms",
            "start_ms long, price long, auction long, bidder long",
            lambda df: _bids(df).withColumn("start_ms", _window_start()),
            highest_bids,
            in_jvm=_highest_by_window,
            in_arrow=(WindowsHighestBid, "start_ms"),
            prepare_in_arrow=_highest_of_map_tasks,
        ),
        _Query(
            "q8",
            "Query 8, new sellers: persons with an auction in the 10 s in which they came",
            NewSellers,
            "person",
            "id long, name string, start_ms long",
            lambda df: _by_person(_timed(df).where(F.col("kind") != BID)),
            new_sellers,
        ),
        _Query(
            "q11",
            "Query 11, user sessions: bids per bidder, 10 s apart at most",
            partial(RowsSessions, _GAP_MS),
            "key",
            sessions.OUTPUT,
            _bids_of_bidders,
            bidder_sessions,
            in_jvm=lambda df: bid_sessions(_bidders_only(df)),
            in_arrow=(partial(ArrowSessions, _GAP_MS), "key"),
        ),
    ]


def _timed(df: DataFrame) -> DataFrame:
    return df.withColumn("time", F.timestamp_millis("time_ms")).withWatermark("time", _WATERMARK)


def _bids(df: DataFrame) -> DataFrame:
    return (
        _timed(df)
        .where(F.col("kind") == BID)
        .select("auction", "bidder", "price", "time_ms", "time")
    )


def _counts_of_windows(df: DataFrame) -> DataFrame:
    """Count in each map task, as Spark's operator does; a count comes in each window it is in."""
    bids = df.where(F.col("kind") == BID).select("auction", "time_ms")
    starts = [F.col("slide_ms") - back for back in range(0, WINDOW_MS, SLIDE_MS)]
    return _timed(bids.mapInArrow(counted_slides, COUNTED)).select(
        "auction", F.explode(F.array(*starts)).alias("start_ms"), "n", "time"
    )


def _highest_of_map_tasks(df: DataFrame) -> DataFrame:
    """Keep the highest bid of each window in each map task, as Spark's operator does."""
    bids = df.where(F.col("kind") == BID).select("price", "auction", "bidder", "time_ms")
    return _timed(bids.mapInArrow(highest_of_windows, HIGHEST))


def _window_start() -> Column:
    return F.col("time_ms") - F.col("time_ms") % WINDOW_MS


def _by_person(df: DataFrame) -> DataFrame:
    person = F.when(F.col("kind") == PERSON, F.col("id")).otherwise(F.col("seller"))
    return df.withColumn("person", person)


def _sellers_and_items(df: DataFrame) -> DataFrame:
    is_local = (F.col("kind") == PERSON) & F.col("state").isin(_STATES)
    is_item = (F.col("kind") == AUCTION) & (F.col("category") == _CATEGORY)
    return _by_person(df.where(is_local | is_item)).select(
        "person", "kind", "id", "name", "city", "state"
    )


def _bidders_only(df: DataFrame) -> DataFrame:
    return df.where(F.col("kind") == BID).select(F.col("bidder").alias("key"), "time_ms")


def _bids_of_bidders(df: DataFrame) -> DataFrame:
    return _timed(_bidders_only(df))


def _counted_by_window(df: DataFrame) -> DataFrame:
    window = F.window("time", f"{WINDOW_MS} milliseconds", f"{SLIDE_MS} milliseconds")
    counted = _bids(df).groupBy("auction", window).agg(F.count("*").alias("n"))
    return counted.select("auction", F.unix_millis("window.start").alias("start_ms"), "n")


def _highest_by_window(df: DataFrame) -> DataFrame:
    window = F.window("time", f"{WINDOW_MS} milliseconds")
    highest = F.max(F.struct("price", "auction", "bidder")).alias("bid")
    found = _bids(df).groupBy(window).agg(highest)
    return found.select(F.unix_millis("window.start").alias("start_ms"), "bid.*")


def _events(files: Sequence[Path], kind: int) -> pd.DataFrame:
    """Return all events of a kind; without the last file, whose bid only moves the watermark."""
    rows = read_files(files[:-1])
    return (
        rows[rows["kind"] == kind]
        .dropna(axis="columns")
        .astype({"time_ms": "int64"}, errors="raise")
    )


def local_items(files: Sequence[Path]) -> pd.DataFrame:
    """Compute query 3 with pandas."""
    persons = _events(files, PERSON)
    persons = persons[persons["state"].isin(_STATES)]
    auctions = _events(files, AUCTION)
    auctions = auctions[auctions["category"] == _CATEGORY]
    joined = persons.merge(
        auctions[["id", "seller"]].rename(columns={"id": "auction"}),
        left_on="id",
        right_on="seller",
    )
    return joined[["name", "city", "state"]].assign(auction=joined["auction"].astype("int64"))


def bid_counts(files: Sequence[Path]) -> pd.DataFrame:
    """Compute the counts of query 5 with pandas."""
    bids = _events(files, BID)
    last = bids["time_ms"] - bids["time_ms"] % SLIDE_MS
    windows = [
        pd.DataFrame({"auction": bids["auction"].astype("int64"), "start_ms": last - back})
        for back in range(0, WINDOW_MS, SLIDE_MS)
    ]
    counted = pd.concat(windows).groupby(["auction", "start_ms"]).size()
    return counted.rename("n").reset_index()


def highest_bids(files: Sequence[Path]) -> pd.DataFrame:
    """Compute query 7 with pandas."""
    bids = _events(files, BID)[["price", "auction", "bidder", "time_ms"]].astype("int64")
    bids["start_ms"] = bids["time_ms"] - bids["time_ms"] % WINDOW_MS
    ordered = bids.sort_values(["price", "auction", "bidder"])
    return ordered.groupby("start_ms").tail(1)


def new_sellers(files: Sequence[Path]) -> pd.DataFrame:
    """Compute query 8 with pandas."""
    persons, auctions = _events(files, PERSON), _events(files, AUCTION)
    for frame in (persons, auctions):
        frame["start_ms"] = frame["time_ms"] - frame["time_ms"] % WINDOW_MS
    sold = auctions[["seller", "start_ms"]].drop_duplicates()
    joined = persons.merge(sold, left_on=["id", "start_ms"], right_on=["seller", "start_ms"])
    return joined[["name", "start_ms"]].assign(id=joined["id"].astype("int64"))


def bidder_sessions(files: Sequence[Path]) -> pd.DataFrame:
    """Compute query 11 with pandas."""
    bids = _events(files, BID)
    rows = pd.DataFrame({"key": bids["bidder"].astype("int64"), "time_ms": bids["time_ms"]})
    return sessions.sessions_of(rows, _GAP_MS)
