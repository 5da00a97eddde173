"""Queries of Nexmark with keyed state, as processors that run unchanged in PySpark and here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.workloads.nexmark_events import PERSON

WINDOW_MS = 10_000
SLIDE_MS = 2_000


class LocalItems(StatefulProcessor):
    """Query 3: who sells in some states? Joins persons with their auctions, whichever is first."""

    def init(self, handle: Any) -> None:
        self._person = handle.getValueState("person", "name string, city string, state string")
        self._waiting = handle.getListState("waiting", "auction long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        person = self._person.get()
        new = []
        for row in rows:
            if row.kind == PERSON:
                person = (row.name, row.city, row.state)
                self._person.update(person)
                new += [auction for (auction,) in self._waiting.get()]
                self._waiting.clear()
            else:
                new.append(row.id)
        if person is None:
            self._waiting.appendList([(auction,) for auction in new])
            return
        for auction in new:
            yield Row(name=person[0], city=person[1], state=person[2], auction=auction)

    def close(self) -> None:
        pass


class BidCounts(StatefulProcessor):
    """The keyed part of query 5: bids per auction in windows that slide.

    Counts are kept per slide, and a window adds up those within it.
    """

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._slides = handle.getMapState("slides", "start_ms long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        counts: dict[int, int] = {}
        for row in rows:
            start_ms = row.time_ms - row.time_ms % SLIDE_MS
            counts[start_ms] = counts.get(start_ms, 0) + 1
        for start_ms, n in counts.items():
            before = self._slides.getValue((start_ms,))
            self._slides.updateValue((start_ms,), (n + (before[0] if before else 0),))
            if before is None:
                for end_ms in range(start_ms + SLIDE_MS, start_ms + WINDOW_MS + 1, SLIDE_MS):
                    self._handle.registerTimer(end_ms)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        end_ms = expiredTimerInfo.getExpiryTimeInMs()
        first_ms = end_ms - WINDOW_MS
        slides = (self._slides.getValue((at,)) for at in range(first_ms, end_ms, SLIDE_MS))
        yield Row(auction=key[0], start_ms=first_ms, n=sum(slide[0] for slide in slides if slide))
        self._slides.removeKey((first_ms,))

    def close(self) -> None:
        pass


class HighestBid(StatefulProcessor):
    """Query 7: the highest bid of each window; the key is the window's begin."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._highest = handle.getValueState("bid", "price long, auction long, bidder long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        highest = max((row.price, row.auction, row.bidder) for row in rows)
        before = self._highest.get()
        if before is None:
            self._handle.registerTimer(key[0] + WINDOW_MS)
        if before is None or highest > tuple(before):
            self._highest.update(highest)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        price, auction, bidder = self._highest.get()
        yield Row(start_ms=key[0], price=price, auction=auction, bidder=bidder)
        self._highest.clear()

    def close(self) -> None:
        pass


class NewSellers(StatefulProcessor):
    """Query 8: who has an auction in the window in which they came?"""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._person = handle.getValueState("person", "name string, start_ms long, shown boolean")
        self._sold = handle.getMapState("sold", "start_ms long", "auctions long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        person = before = self._person.get()
        sold: dict[int, int] = {}
        for row in rows:
            start_ms = row.time_ms - row.time_ms % WINDOW_MS
            if row.kind == PERSON:
                person = (row.name, start_ms, False)
                self._handle.registerTimer(start_ms + WINDOW_MS)
            else:
                sold[start_ms] = sold.get(start_ms, 0) + 1
        for start_ms, auctions in sold.items():
            known = self._sold.getValue((start_ms,))
            self._sold.updateValue((start_ms,), (auctions + (known[0] if known else 0),))
            self._handle.registerTimer(start_ms + WINDOW_MS)
        if person is not None and not person[2] and self._sold.containsKey((person[1],)):
            yield Row(id=key[0], name=person[0], start_ms=person[1])
            person = (person[0], person[1], True)
        if person is not before and person is not None:
            self._person.update(person)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        start_ms = expiredTimerInfo.getExpiryTimeInMs() - WINDOW_MS
        self._sold.removeKey((start_ms,))
        person = self._person.get()
        if person is not None and person[1] == start_ms:
            self._person.clear()
        return iter(())

    def close(self) -> None:
        pass
