"""The hold on cleaning: no file is deleted during a copy, and neither waits without need."""

from __future__ import annotations

import threading
from contextlib import suppress

from pyspark_ckpt.checkpoint.cleaning import CleaningHold


def test_nothing_is_cleaned_while_someone_holds() -> None:
    hold = CleaningHold()
    with hold.held(), hold.held():
        with hold.cleaning() as may_clean:
            assert not may_clean
    with hold.cleaning() as may_clean:
        assert may_clean


def test_a_hold_waits_for_a_cleaning_under_way() -> None:
    hold, held = CleaningHold(), threading.Event()

    def copy() -> None:
        with hold.held():
            held.set()

    with hold.cleaning() as may_clean:
        assert may_clean
        copying = threading.Thread(target=copy)
        copying.start()
        assert not held.wait(0.05)
    assert held.wait(60)
    copying.join(60)


def test_an_error_in_either_lets_go() -> None:
    hold = CleaningHold()
    for context in (hold.held, hold.cleaning):
        with suppress(ValueError), context():
            raise ValueError
    hold.wait()
    with hold.held(), hold.cleaning() as may_clean:
        assert not may_clean
