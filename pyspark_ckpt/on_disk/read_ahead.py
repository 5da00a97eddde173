"""Reading ahead: what is made next is made in a thread while the last of it is being written."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_POLL_SECONDS = 0.1


def read_ahead(items: Iterator[_Item]) -> Generator[_Item, None, None]:
    """Yield `items`, of which the next one is made in a thread of its own meanwhile.

    That pays where the consumer leaves the interpreter: it compresses, digests, writes. At most one
    item waits. `items` is used, and closed if it is a generator, in that thread only; it is over
    when this generator is.
    """
    made: queue.Queue[Any] = queue.Queue(1)
    is_over = threading.Event()
    thread = threading.Thread(
        target=_make, args=(items, made, is_over), name="pyspark_ckpt-read-ahead", daemon=True
    )
    thread.start()
    try:
        while True:
            kind, item = made.get()
            if kind is _Failed:
                raise item
            if kind is _Ended:
                return
            yield item
    finally:
        is_over.set()
        thread.join()


class _Failed:
    pass


class _Ended:
    pass


def _make(items: Iterator[Any], made: queue.Queue[Any], is_over: threading.Event) -> None:
    try:
        try:
            for item in items:
                if not _put((None, item), made, is_over):
                    return
        finally:
            if isinstance(items, Generator):
                items.close()
    except BaseException as exc:
        _put((_Failed, exc), made, is_over)
    else:
        _put((_Ended, None), made, is_over)


def _put(item: Any, made: queue.Queue[Any], is_over: threading.Event) -> bool:
    """Hand an item over; return whether anybody still wants one."""
    while not is_over.is_set():
        with suppress(queue.Full):
            made.put(item, timeout=_POLL_SECONDS)
            return True
    return False
