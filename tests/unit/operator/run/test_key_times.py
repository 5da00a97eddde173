"""Samples of the key under way, and the thread that takes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from pyspark_ckpt.formats.handle import SlowKey, SlowKeys
from pyspark_ckpt.operator.run import observers as key_times
from pyspark_ckpt.operator.run.observers import KeyTimes, sampled


@pytest.fixture
def pass_ms(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that lets the clock of the samples go on."""
    now_ns = 0

    def passes(milliseconds: int) -> None:
        nonlocal now_ns
        now_ns += 1_000_000 * milliseconds

    monkeypatch.setattr(key_times.time, "perf_counter_ns", lambda: now_ns)
    return passes


def test_the_slowest_keys_come_first_and_older_epochs_count_less(
    pass_ms: Callable[[int], None],
) -> None:
    found: SlowKeys | None = None
    for epoch in range(2):
        keys = iter([("a",), None, ("b", 2), ("a",)])
        times = KeyTimes(lambda keys=keys: next(keys))  # type: ignore[misc]
        for took_ms in (100, 999, 640, 50):
            pass_ms(took_ms)
            times.sample()
        found = times.after(found)
        if not epoch:
            assert found == SlowKeys(790, (SlowKey("b, 2", 640), SlowKey("a", 150)))
    assert found == SlowKeys(1555, (SlowKey("b, 2", 1260), SlowKey("a", 295)))


def test_a_null_and_its_text_are_two_keys(pass_ms: Callable[[int], None]) -> None:
    keys = iter([(None, "a"), ("None", "a")])
    times = KeyTimes(lambda: next(keys))
    for took_ms in (20, 10):
        pass_ms(took_ms)
        times.sample()
    assert times.after(None) == SlowKeys(30, (SlowKey("None, a", 20), SlowKey("'None', a", 10)))


def test_the_keys_of_an_epoch_are_bounded(pass_ms: Callable[[int], None]) -> None:
    times = KeyTimes(lambda: ("long" * 100,))
    for _ in range(900):
        pass_ms(50)
        times.sample()
    found = times.after(None)
    assert isinstance(found, SlowKeys)
    assert [len(each.key) for each in found.keys] == [100]

    numbers = iter(range(900))
    times = KeyTimes(lambda: (next(numbers),))
    for _ in range(900):
        pass_ms(50)
        times.sample()
    found = times.after(None)
    assert isinstance(found, SlowKeys)
    assert (len(found.keys), found.sampled_ms) == (8, 50 * 500)


def test_an_epoch_without_a_sample_leaves_nothing() -> None:
    assert KeyTimes(lambda: None).after(None) is None


class Waiting(KeyTimes):
    """Says when it was sampled."""

    def __init__(self) -> None:
        super().__init__(lambda: ("a",))
        self.was_sampled = threading.Event()

    def sample(self) -> None:
        super().sample()
        self.was_sampled.set()


def test_a_thread_samples_while_an_epoch_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_times, "PERIOD_S", 0.001)
    for _ in range(2):  # the thread is used again
        times = Waiting()
        with sampled(times):
            assert times.was_sampled.wait(30)
        assert times.after(None) is not None
    names = [each.name for each in threading.enumerate()]
    assert names.count("pyspark_ckpt key times") == 1


def test_a_forked_process_has_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_times, "PERIOD_S", 0.001)
    with sampled(Waiting()):
        pass
    process_id = os.fork()
    if not process_id:
        times = Waiting()
        with sampled(times):
            os._exit(0 if times.was_sampled.wait(30) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1]) == 0
