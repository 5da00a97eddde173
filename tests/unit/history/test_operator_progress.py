"""An operator's progress from the handles of its subtasks."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.formats.counters import EpochMetrics, EpochPhases
from pyspark_ckpt.formats.handle import Handle, Segment, StateCount, StateCounts
from pyspark_ckpt.history.operator_progress import operator_progress, slowest_phases


def with_metrics(handle: Handle, subtask: int, epoch: int, metrics: EpochMetrics | None) -> Handle:
    segments = (Segment(f"{epoch}-a", epoch, 2, 10 + subtask, inline=b""),)
    return msgspec.structs.replace(
        handle, subtask=subtask, epoch=epoch, base=None, segments=segments, metrics=metrics
    )


def test_counts_are_summed_times_are_those_of_the_slowest(handle: Handle) -> None:
    first = EpochMetrics(rows=5, keys=2, reads=3, cache_hits=1, writes=2, timers_fired=1,
                         expired=4, rebuilds=1, open_ms=7, process_ms=20, barrier_ms=3, requests=2,
                         packed_hand_overs=1, quarantined_keys=2, quarantined_rows=9)  # fmt: skip
    second = EpochMetrics(rows=1, keys=1, reads=1, writes=1, open_ms=9, process_ms=10,
                          requests=1)  # fmt: skip
    handles = [with_metrics(handle, 0, 6, first), with_metrics(handle, 2, 6, second)]
    handles = [
        msgspec.structs.replace(each, phases=(EpochPhases(5, *[99] * 6), phases))
        for each, phases in zip(
            handles,
            (EpochPhases(6, 0, 0, 4, 1, 8, 0), EpochPhases(6, 0, 0, 2, 5, 3, 0)),
            strict=True,
        )
    ]
    progress = operator_progress("op", 6, "heap", handles)
    sizes = progress.pop("subtasks")
    assert progress == {
        "operatorName": "op", "epoch": 6, "backend": "heap", "numSubtasks": 2, "numInputRows": 6,
        "numKeysTouched": 3, "numLateRows": 0, "numStateReads": 4, "numCacheHits": 1,
        "numStateWrites": 3,
        "numTimersFired": 1, "numExpired": 4, "numRebuilds": 1, "openTimeMs": 9,
        "processTimeMs": 20, "barrierTimeMs": 3, "readTimeMs": 4,
        "userTimeMs": 5, "writeTimeMs": 8, "numRequests": 3, "numPackedHandOvers": 1,
        "numQuarantinedKeys": 2, "numQuarantinedRows": 9,
        "numKeys": None, "numTimers": None, "states": None,
        "isEstimated": False, "countedAtEpoch": None,
    }  # fmt: skip
    assert [(size["subtask"], size["changelogBytes"]) for size in sizes] == [(0, 10), (2, 12)]


def test_phases_are_those_of_the_slowest_subtask_of_each_epoch(handle: Handle) -> None:
    first = (EpochPhases(4, 30, 1, 1, 1, 1, 1), EpochPhases(5, 40, 1, 2, 3, 4, 5))
    second = (EpochPhases(5, 90, 5, 4, 3, 2, 2), EpochPhases(6, 20, 1, 1, 1, 1, 1))
    handles = [msgspec.structs.replace(handle, phases=phases) for phases in (first, second)]
    handles.append(msgspec.structs.replace(handle, phases=()))
    assert slowest_phases(handles) == [first[0], EpochPhases(5, 40, 5, 4, 3, 2, 2), second[1]]


def test_a_subtask_that_was_not_called_in_the_epoch_only_shows_its_state(handle: Handle) -> None:
    idle = with_metrics(handle, 0, 5, EpochMetrics(rows=100, keys=9, quarantined_keys=3))
    progress = operator_progress("op", 6, "rocksdb", [idle])
    assert (progress["numSubtasks"], progress["numInputRows"]) == (0, 0)
    assert progress["numQuarantinedKeys"] == 3  # they are quarantined still
    assert [size["epoch"] for size in progress["subtasks"]] == [5]


def test_counts_are_scaled_from_the_counted_key_groups(handle: Handle) -> None:
    """The first subtask was counted whole, the second one by a quarter; keys are the maximum."""

    def with_counts(subtask: int, groups: int, keys: int, timers: int) -> Handle:
        states = (
            StateCount(name="a", keys=keys, entries=2 * keys, size_bytes=30),
            StateCount(name="b", keys=1, entries=1, size_bytes=8),
        )
        counts = StateCounts(
            epoch=4 + subtask, counted_at_ms=0, took_us=0, groups=groups, of_groups=8,
            timers=timers, states=states,
        )  # fmt: skip
        return msgspec.structs.replace(handle, subtask=subtask, epoch=6, counts=counts)

    handles = [with_counts(0, 8, 10, 3), with_counts(1, 2, 5, 1)]
    progress = operator_progress("op", 6, "heap", handles)
    assert (progress["numKeys"], progress["numTimers"]) == (10 + 20, 3 + 4)
    assert progress["states"] == [
        {"state": "a", "numKeys": 30, "numEntries": 60, "sizeBytes": 150},
        {"state": "b", "numKeys": 5, "numEntries": 5, "sizeBytes": 40},
    ]
    assert (progress["isEstimated"], progress["countedAtEpoch"]) == (True, 4)
    exact = operator_progress("op", 6, "heap", handles[:1])
    assert (exact["isEstimated"], exact["numKeys"]) == (False, 10)


def test_there_is_progress_before_the_first_handle() -> None:
    assert operator_progress("op", 0, "heap", [])["openTimeMs"] == 0
