"""Queries 5 and 7 of Nexmark for all keys at once, as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import pyspark_ckpt as ckpt
from benchmarks.workloads.nexmark_processors import WINDOW_MS

_BID = ["price", "auction", "bidder"]


class WindowCounts(ckpt.ArrowProcessor):
    """The keyed part of query 5: bids per auction and window, which are the key."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputArrow(self, keys: pa.Table, rows: pa.Table, timerValues: Any) -> None:
        before = self._count.getMany(keys).column("n")
        counted = rows.group_by("key_position").aggregate([([], "count_all")])
        counted = counted.sort_by("key_position").column("count_all")
        n = pc.add(pc.fill_null(before, 0), counted)
        self._count.updateMany(keys, pa.table({"n": n}))
        new = keys.filter(pc.is_null(before))
        self._handle.registerTimers(new, pc.add(new.column("start_ms"), WINDOW_MS))

    def handleExpiredTimers(
        self, keys: pa.Table, timerValues: Any, expiredTimerInfo: Any
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
        top = bids.group_by("key_position").aggregate([("price", "max")]).sort_by("key_position")
        is_top = pc.equal(
            bids.column("price"), top.column("price_max").take(bids.column("key_position"))
        )
        ranked = bids.filter(is_top).sort_by(
            [("key_position", "ascending"), ("auction", "descending"), ("bidder", "descending")]
        )
        _, first = np.unique(ranked.column("key_position").to_numpy(), return_index=True)
        self._highest.updateMany(keys, ranked.take(first).select(_BID))
        new = keys.filter(pc.is_null(before.column("price")))
        self._handle.registerTimers(new, pc.add(new.column("start_ms"), WINDOW_MS))

    def handleExpiredTimers(
        self, keys: pa.Table, timerValues: Any, expiredTimerInfo: Any
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
