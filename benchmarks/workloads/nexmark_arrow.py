"""Queries 5 and 7 of Nexmark for all keys at once, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pyspark_ckpt as ckpt
from benchmarks.workloads.nexmark_processors import SLIDE_MS, WINDOW_MS

_BID = ["price", "auction", "bidder"]

COUNTED = "auction long, slide_ms long, n long, time_ms long"
HIGHEST = "start_ms long, price long, auction long, bidder long, time_ms long"


def counted_slides(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count the bids of a map task per auction and slide, with the newest time of each count."""
    bids = pa.Table.from_batches(
        batches, pa.schema([("auction", pa.int64()), ("time_ms", pa.int64())])
    )
    times = bids.column("time_ms").to_numpy()
    bids = bids.append_column("slide_ms", pa.array(times - times % SLIDE_MS))
    counted = bids.group_by(["auction", "slide_ms"]).aggregate(
        [([], "count_all"), ("time_ms", "max")]
    )
    yield from counted.rename_columns(["auction", "slide_ms", "n", "time_ms"]).to_batches()


def highest_of_windows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep the highest bid of each window of a map task, with the newest time of its bids."""
    names = [*_BID, "time_ms"]
    bids = pa.Table.from_batches(batches, pa.schema([(name, pa.int64()) for name in names]))
    times = bids.column("time_ms").to_numpy()
    bids = bids.append_column("start_ms", pa.array(times - times % WINDOW_MS))
    newest = bids.group_by("start_ms").aggregate([("time_ms", "max")])
    highest = _highest(bids.select(["start_ms", *_BID]), "start_ms")
    yield from highest.join(newest, "start_ms").rename_columns(["start_ms", *names]).to_batches()


def _highest(bids: pa.Table, of: str) -> pa.Table:
    """Return the highest bid of each value of a column, in the order of the values."""
    top = bids.group_by(of).aggregate([("price", "max")])
    tied = bids.join(top, of).filter(pc.field("price") == pc.field("price_max")).drop("price_max")
    ranked = tied.sort_by([(of, "ascending"), ("auction", "descending"), ("bidder", "descending")])
    _, first = np.unique(ranked.column(of).to_numpy(), return_index=True)
    return ranked.take(first)


class WindowCounts(ckpt.ArrowProcessor):
    """The keyed part of query 5: bids per auction and window, which are the key."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
        before = self._count.getMany(keys).column("n")
        added = rows.group_by("key_position").aggregate([("n", "sum")]).sort_by("key_position")
        n = pc.add(pc.fill_null(before, 0), added.column("n_sum"))
        self._count.updateMany(keys, pa.table({"n": n}))
        new = keys.filter(pc.is_null(before))
        self._handle.registerTimers(new, pc.add(new.column("start_ms"), WINDOW_MS))

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        yield keys.append_column("n", self._count.getMany(keys).column("n"))
        self._count.clearMany(keys)

    def close(self) -> None:
        pass


class WindowsHighestBid(ckpt.ArrowProcessor):
    """Query 7: the highest bid of each window; the key is the window's begin."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._highest = handle.getValueState("bid", "price long, auction long, bidder long")

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
        before = self._highest.getMany(keys)
        known = before.append_column("key_position", keys.column("key_position"))
        bids = pa.concat_tables(
            [
                rows.select(["key_position", *_BID]),
                known.filter(pc.is_valid(known.column("price"))).select(["key_position", *_BID]),
            ]
        )
        self._highest.updateMany(keys, _highest(bids, "key_position").select(_BID))
        new = keys.filter(pc.is_null(before.column("price")))
        self._handle.registerTimers(new, pc.add(new.column("start_ms"), WINDOW_MS))

    def handleExpiredTimers(
        self, keys: pa.Table, timers: pa.Table, timerValues: Any
    ) -> Iterator[pa.Table]:
        bids = self._highest.getMany(keys)
        yield pa.table(
            {
                "start_ms": keys.column("start_ms"),
                **dict(zip(_BID, bids.select(_BID).columns, strict=True)),
            }
        )
        self._highest.clearMany(keys)

    def close(self) -> None:
        pass
