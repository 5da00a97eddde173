"""Which epochs of a query are captured, as files in its checkpoints directory.

A start reads the requests. Tasks get what they need with the settings of the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.formats.layout import CAPTURES, CaptureName, capture_name
from pyspark_ckpt.formats.mailbox import Mailbox, file_name
from pyspark_ckpt.operator.capture.capture_file import CapturedEpoch
from pyspark_ckpt.operator.descriptor import CaptureOrder
from pyspark_ckpt.storage.base import Storage

MAX_BYTES = 1 << 20
Place = TypeVar("Place")


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to capture epochs."""

    orders: tuple[CaptureOrder, ...]
    requested_at_ms: int


def orders_of(epochs: Iterable[int], uid: str | None) -> tuple[CaptureOrder, ...]:
    """Return epochs as orders, one for each run of numbers that follow each other."""
    orders: list[CaptureOrder] = []
    for epoch in sorted(set(epochs)):
        if orders and orders[-1].last == epoch - 1:
            orders[-1] = CaptureOrder(orders[-1].first, epoch, uid)
        else:
            orders.append(CaptureOrder(epoch, epoch, uid))
    return tuple(orders)


class CaptureFiles:
    """The requests and captures of one query."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._mailbox = Mailbox(storage, CAPTURES, "ask for the captures again", MAX_BYTES)

    def request(self, orders: Sequence[CaptureOrder]) -> None:
        """Have epochs captured from the next start on; durable on return.

        Nothing is written if earlier requests have all of it.
        """
        known = self.orders()
        if all(any(_has(each, order) for each in known) for order in orders):
            return
        at_ms = now_ms()
        self._mailbox.post(CaptureRequest(orders=tuple(orders), requested_at_ms=at_ms), at_ms)

    def orders(self) -> tuple[CaptureOrder, ...]:
        """Return what all requests order."""
        return tuple(
            dict.fromkeys(order for orders in self._requests().values() for order in orders)
        )

    def captured(self) -> dict[str, CaptureName]:
        """Return what the names of the captured epochs say, by the path of the file."""
        named = {name: capture_name(name) for name in self._storage.list(CAPTURES)}
        return {f"{CAPTURES}/{name}": each for name, each in named.items() if each is not None}

    def delete(self, paths: Iterable[str], orders: Sequence[CaptureOrder]) -> None:
        """Delete captures, and the requests that order nothing else."""
        self._mailbox.delete(
            file_name(request_id)
            for request_id, wanted in self._requests().items()
            if all(any(_has(each, order) for each in orders) for order in wanted)
        )
        self._storage.delete(paths)

    def _requests(self) -> dict[str, tuple[CaptureOrder, ...]]:
        """Return what each request orders, by its id, oldest first."""
        ids = self._mailbox.ids(self._mailbox.names())
        return {each: self._mailbox.read(each, CaptureRequest).orders for each in ids}


def _has(order: CaptureOrder, other: CaptureOrder) -> bool:
    is_within = order.first <= other.first and other.last <= order.last
    return is_within and order.uid in (None, other.uid)


def newest_captures(captures: Mapping[Place, CapturedEpoch]) -> list[Place]:
    """Return where the captures are that count.

    An epoch that ran again, after a crash or a rollback, may have had its rows in other subtasks
    than before. So what an earlier run left of it does not count, also not for subtasks of which
    the newest run has no capture. The newest run that ran a committed epoch is the one that
    committed it. Of a subtask the newest attempt of that run counts.

    `captures` must have the captures of all operators.
    """
    runs: dict[int, tuple[int, int, str]] = {}
    for each in captures.values():
        runs[each.epoch] = max(_run(each), runs.get(each.epoch, _run(each)))
    newest: dict[tuple[str, int, int], Place] = {}
    for place, each in captures.items():
        if _run(each) != runs[each.epoch]:
            continue
        subtask = each.uid, each.subtask, each.epoch
        known = newest.setdefault(subtask, place)
        if captures[known].written_at_ms < each.written_at_ms:
            newest[subtask] = place
    return list(newest.values())


def _run(epoch: CapturedEpoch) -> tuple[int, int, str]:
    return epoch.timeline, epoch.run_started_ms, epoch.run
