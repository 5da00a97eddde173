"""Keys whose processor raises are quarantined, and after their release nothing tells it."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from pyspark_ckpt.errors import CrashedError, PlanError, ProcessorError, QuarantineError
from pyspark_ckpt.operator.run import processing
from pyspark_ckpt.testing import CrashStep, ProcessorHarness
from state_backends import BACKEND_TYPES

from .flaky import BAD, BAD_TIMER, Deleting, Flaky, FlakyFrames, ReturnsOne, ReturnsOneFrame

STATES = ("count", "values", "seen", "sum")

values = st.lists(st.sampled_from([BAD, 1, 2, 3]), min_size=1, max_size=4)
epochs = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), values, min_size=1), min_size=1, max_size=6
)


def rows(found):
    return {key: [Row(v=value) for value in each] for key, each in found.items()}


def frames(found):
    return {key: pd.DataFrame({"v": each}) for key, each in found.items()}


def by_key(outputs):
    """Return what was yielded for each key, in order, whichever epoch it came in."""
    found = {}
    for output in outputs:
        each = output.itertuples(index=False) if isinstance(output, pd.DataFrame) else output
        for row in each:
            found.setdefault(row.key, []).append((row.n, row.text))
    return found


def contents(harness, keys):
    return {(key, name): harness.peek(name, key) for key in keys for name in STATES}


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(epochs, st.sampled_from(BACKEND_TYPES), st.integers(0, 5), st.booleans())
def test_release_makes_good_what_failed(given_epochs, backend, restart, in_frames):
    kind, shape = (FlakyFrames, frames) if in_frames else (Flaky, rows)
    perfect = ProcessorHarness(kind(is_mended=True), backend=backend)
    harness = ProcessorHarness(kind(), backend=backend, onError="quarantine")
    wanted, got = [], []
    for number, epoch in enumerate(given_epochs):
        wanted.append(perfect.testMany(shape(epoch)))
        got.append(harness.testMany(shape(epoch)))
        if number == restart:
            harness.loseLocalCopy()
            snapshot = harness.snapshot()
            harness = ProcessorHarness.restored(
                kind(), snapshot, backend="heap", onError="quarantine"
            )
    bad = {key for epoch in given_epochs for key, each in epoch.items() if BAD in each}
    keys = {key for epoch in given_epochs for key in epoch}
    assert set(harness.quarantinedKeys()) == bad
    good = {key: each for key, each in by_key(wanted).items() if key not in bad}
    assert {key: each for key, each in by_key(got).items() if key not in bad} == good
    harness.release()  # with the same program: nothing changes
    assert set(harness.quarantinedKeys()) == bad

    mended = ProcessorHarness.restored(
        kind(is_mended=True), harness.snapshot(), backend=backend, onError="quarantine"
    )
    got.append(mended.release())
    assert mended.quarantinedKeys() == {}
    assert by_key(got) == by_key(wanted)
    assert contents(mended, keys) == contents(perfect, keys)
    assert sorted(mended.peek("all")) == sorted(perfect.peek("all"))


def test_a_key_that_raises_changes_nothing():
    harness = ProcessorHarness(Flaky(), onError="quarantine")
    harness.testMany(rows({"a": [1, 2], "b": [1]}))
    before = contents(harness, "ab"), harness.peek("all")
    assert harness.testMany(rows({"a": [3, BAD]})) == []
    assert (contents(harness, "ab"), harness.peek("all")) == before
    (error,) = harness.quarantinedKeys().values()
    assert error.startswith("ValueError: value -1 after 4")
    assert "flaky.py" in error


def test_only_the_given_keys_are_released():
    harness = ProcessorHarness(Flaky(), onError="quarantine")
    harness.testMany(rows({"a": [BAD], "b": [BAD], "c": [BAD]}))
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True), harness.snapshot(), onError="quarantine"
    )
    assert set(by_key([mended.release(["b"])])) == {"b"}
    assert set(mended.quarantinedKeys()) == {"a", "c"}
    assert set(by_key([mended.release()])) == {"a", "c"}


@pytest.mark.parametrize(
    ("kind", "broken", "shape", "says"),
    [
        (Flaky, ReturnsOne, rows, "returned one Row: yield it"),
        (FlakyFrames, ReturnsOneFrame, frames, "returned a DataFrame: yield it"),
    ],
)
def test_a_released_key_says_that_its_output_should_be_yielded(kind, broken, shape, says):
    harness = ProcessorHarness(kind(), onError="quarantine")
    harness.testMany(shape({"a": [BAD]}))
    mended = ProcessorHarness.restored(
        broken(is_mended=True), harness.snapshot(), onError="quarantine"
    )
    assert len(mended.release()) == 0
    (error,) = mended.quarantinedKeys().values()
    assert says in error


def test_timers_of_a_quarantined_key_fire_after_its_release():
    harness = ProcessorHarness(
        Flaky(with_timers=True), timeMode="ProcessingTime", onError="quarantine"
    )
    harness.testMany(rows({"a": [1], "b": [2]}))
    harness.testMany(rows({"a": [BAD, 3]}))
    assert harness.peekTimers("a") == [1_001]
    assert [row.key for row in harness.setProcessingTime(5_000)] == ["b"]
    assert [row.key for row in harness.setProcessingTime(6_000)] == []
    assert harness.peekTimers("a") == [1_001]
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True, with_timers=True), harness.snapshot(), onError="quarantine"
    )
    found = [(row.key, row.text) for row in mended.release()]
    assert found == [("a", "[-1, 3]"), ("a", "timer 1001"), ("a", "timer 1003")]
    assert mended.peekTimers("a") == []


def test_a_timer_that_raises_quarantines_its_key_and_stays():
    harness = ProcessorHarness(
        Flaky(with_timers=True), timeMode="ProcessingTime", onError="quarantine"
    )
    harness.testMany(rows({"a": [BAD_TIMER, 8], "b": [8]}))
    found = [(row.key, row.text) for row in harness.setProcessingTime(5_000)]
    assert found == [("b", "timer 1008")]
    assert harness.peekTimers("a") == [1_007, 1_008]
    assert harness.peekValueState("count", "a") == (2,)
    harness.test("a", [Row(v=5)])  # is kept
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True, with_timers=True), harness.snapshot(), onError="quarantine"
    )
    found = [row.text for row in mended.release()]
    assert found == ["[5]", "timer 1005", "timer 1007", "timer 1008"]


@pytest.mark.parametrize("at_once", [1, 2, 100_000])
@pytest.mark.parametrize("bad_ms", [1_010, 1_020, 1_030])
def test_due_timers_of_a_key_that_is_quarantined_fire_after_its_release(
    monkeypatch, at_once, bad_ms
):
    monkeypatch.setattr(processing, "TIMERS_AT_ONCE", at_once)
    harness = ProcessorHarness(Deleting(bad_ms), timeMode="ProcessingTime", onError="quarantine")
    harness.testMany({key: [Row(v=0)] for key in "ab"})
    found = [(row.key, row.time_ms) for row in harness.setProcessingTime(5_000)]
    before = [time_ms for time_ms in (1_010, 1_020, 1_030) if time_ms < bad_ms]
    assert [time_ms for key, time_ms in found if key == "a"] == before
    assert [time_ms for key, time_ms in found if key == "b"] == [1_010, 1_020, 1_030]
    # The first timer deletes the third, which fires all the same: b shows it.
    left = [time_ms for time_ms in (1_010, 1_020, 1_030) if time_ms >= bad_ms]
    assert harness.peekTimers("a") == left
    assert harness.peekTimers("b") == []
    mended = ProcessorHarness.restored(
        Deleting(None), harness.snapshot(), timeMode="ProcessingTime", onError="quarantine"
    )
    assert [row.time_ms for row in mended.release()] == left
    assert mended.setProcessingTime(6_000) == []


def test_new_rows_of_a_released_key_follow_its_old_ones():
    harness = ProcessorHarness(Flaky(), onError="quarantine")
    harness.test("a", [Row(v=BAD)])
    harness.test("a", [Row(v=1)])
    harness.test("a", [Row(v=2)])
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True), harness.snapshot(), onError="quarantine"
    )
    assert [row.text for row in mended.release()] == ["[-1]", "[1]", "[2]"]
    assert [row.text for row in mended.test("a", [Row(v=3)])] == ["[3]"]


@pytest.mark.parametrize(
    ("key", "limit", "found"),
    [
        ("spark.ckpt.internal.quarantine.max-rows-per-key", "2", "3 rows"),
        ("spark.ckpt.internal.quarantine.max-bytes-per-key", "5b", "bytes"),
    ],
)
def test_a_key_with_too_many_rows_fails_the_epoch(key, limit, found):
    harness = ProcessorHarness(Flaky(), onError="quarantine", conf={key: limit})
    harness.test("a", [Row(v=BAD)])
    with pytest.raises(QuarantineError, match=found):
        harness.test("a", [Row(v=2), Row(v=3)])


def test_too_many_quarantined_keys_fail_the_epoch():
    conf = {"spark.ckpt.quarantine.max-keys": "2"}
    harness = ProcessorHarness(Flaky(), onError="quarantine", conf=conf)
    harness.testMany(rows({"a": [BAD], "b": [BAD]}))
    with pytest.raises(QuarantineError, match="max-keys"):
        harness.test("c", [Row(v=BAD)])
    assert set(harness.quarantinedKeys()) == {"a", "b"}


def test_a_program_without_a_quarantine_refuses_quarantined_keys():
    harness = ProcessorHarness(Flaky(), onError="quarantine")
    harness.test("a", [Row(v=BAD)])
    plain = ProcessorHarness.restored(Flaky(is_mended=True), harness.snapshot())
    with pytest.raises(QuarantineError, match="1 keys are quarantined"):
        plain.test("b", [Row(v=1)])
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True), harness.snapshot(), onError="quarantine"
    )
    mended.release()
    plain = ProcessorHarness.restored(Flaky(), mended.snapshot())
    assert len(plain.test("b", [Row(v=1)])) == 1


def test_without_a_quarantine_an_epoch_fails():
    harness = ProcessorHarness(Flaky())
    with pytest.raises(ProcessorError):
        harness.test("a", [Row(v=BAD)])
    with pytest.raises(PlanError, match="onError is 'ignore', allowed are fail and quarantine"):
        ProcessorHarness(Flaky(), onError="ignore")


@pytest.mark.parametrize("step", list(CrashStep))
def test_a_crash_repeats_quarantining_and_release(step):
    harness = ProcessorHarness(Flaky(), onError="quarantine")
    harness.test("b", [Row(v=1)])
    harness.crashAt(step)
    _again(lambda: harness.testMany(rows({"a": [BAD], "b": [1]})))
    assert set(harness.quarantinedKeys()) == {"a"}
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True), harness.snapshot(), onError="quarantine"
    )
    mended.crashAt(step)
    assert [row.text for row in _again(mended.release)] == ["[-1]"]
    assert mended.peekValueState("count", "a") == (1,)


def _again(call):
    try:
        return call()
    except CrashedError:
        return call()


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(epochs)
def test_writes_that_do_not_fit_into_memory_are_undone(given_epochs):
    conf = {"spark.ckpt.execution.memory-limit": "1mb"}
    perfect = ProcessorHarness(Flaky(is_mended=True))
    harness = ProcessorHarness(Flaky(), onError="quarantine", conf=conf)
    many = {f"key {number}": [1] * 60 for number in range(60)}
    for epoch in given_epochs:
        perfect.testMany(rows(epoch | many))
        harness.testMany(rows(epoch | many))
    mended = ProcessorHarness.restored(
        Flaky(is_mended=True), harness.snapshot(), onError="quarantine"
    )
    mended.release()
    keys = ["a", "b", "c", "key 1", "key 59"]
    assert contents(mended, keys) == contents(perfect, keys)
