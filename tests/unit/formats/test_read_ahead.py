"""Reading ahead: the same items, errors and end, produced one step ahead by another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pyspark_ckpt.formats.canonical_file import read_ahead


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "read-ahead" in thread.name}


def test_items_come_in_order_and_the_thread_goes() -> None:
    assert list(read_ahead(iter(range(1000)))) == list(range(1000))
    assert list(read_ahead(iter(()))) == []
    assert threads() == set()


def test_an_error_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    ahead = read_ahead(failing())
    assert next(ahead) == 1
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    assert threads() == set()


def test_the_next_item_is_made_meanwhile_and_no_more() -> None:
    made, third = [], threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 2:
                third.set()
            yield number

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert third.wait(10)  # one waits, one more is made
    assert len(made) <= 3
    ahead.close()


def test_items_are_used_and_closed_in_one_other_thread() -> None:
    seen = []

    def items() -> Iterator[int]:
        try:
            for number in range(100):
                seen.append(threading.current_thread())
                yield number
        finally:
            seen.append(threading.current_thread())

    ahead = read_ahead(items())
    next(ahead)
    ahead.close()
    assert len(set(seen)) == 1
    assert threading.current_thread() not in seen
    assert len(seen) < 10
    assert threads() == set()
