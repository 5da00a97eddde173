"""The progress of an operator in an epoch, in the form of Spark's ``lastProgress``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pyspark_ckpt.formats.counters import COUNTERS, EpochPhases
from pyspark_ckpt.formats.handle import Handle, StateCounts


def operator_progress(
    uid: str, epoch: int, backend_type: str, handles: Sequence[Handle]
) -> dict[str, Any]:
    """Return the progress of an operator in an epoch.

    A subtask that Spark did not call in the epoch adds only to the counters that last.
    """
    counted = [handle.counted(epoch) for handle in handles]
    return {
        "operatorName": uid,
        "epoch": epoch,
        "backend": backend_type,
        "numSubtasks": sum(handle.epoch == epoch for handle in handles),
        **{
            counter.progress: counter.over.of(each[field] for each in counted)
            for field, counter in COUNTERS.items()
        },
        **_extrapolated_sizes([handle.counts for handle in handles]),
        "subtasks": [
            {"subtask": handle.subtask, "epoch": handle.epoch, **_state_size(handle)}
            for handle in handles
        ],
    }


def slowest_phases(handles: Sequence[Handle]) -> list[EpochPhases]:
    """Return the phases of an operator's last epochs, oldest first: of the slowest subtask of each.

    `began_ms` is the begin of the earliest subtask.
    """
    slowest: dict[int, EpochPhases] = {}
    began_ms: dict[int, int] = {}
    for each in (phases for handle in handles for phases in handle.phases):
        found = slowest.setdefault(each.epoch, each)
        if each.total_ms > found.total_ms:
            slowest[each.epoch] = each
        began_ms[each.epoch] = min(each.began_ms, began_ms.get(each.epoch, each.began_ms))
    return [
        msgspec.structs.replace(slowest[epoch], began_ms=began_ms[epoch])
        for epoch in sorted(slowest)
    ]


def _extrapolated_sizes(counts: Sequence[StateCounts | None]) -> dict[str, Any]:
    """Return the sizes of the states, extrapolated from the key groups that were counted.

    They are ``None`` until every subtask has counted.
    """
    known = [each for each in counts if each is not None and each.groups]
    states: dict[str, dict[str, float]] = {}
    timers = 0.0
    for each in known:
        scale = each.of_groups / each.groups
        timers += scale * each.timers
        for state in each.states:
            sums = states.setdefault(state.name, {"keys": 0, "entries": 0, "size_bytes": 0})
            sums["keys"] += scale * state.keys
            sums["entries"] += scale * state.entries
            sums["size_bytes"] += scale * state.size_bytes
    is_known = len(known) == len(counts)
    return {
        "numKeys": round(max((sums["keys"] for sums in states.values()), default=0))
        if is_known
        else None,
        "numTimers": round(timers) if is_known else None,
        "states": [
            {
                "state": name,
                "numKeys": round(sums["keys"]),
                "numEntries": round(sums["entries"]),
                "sizeBytes": round(sums["size_bytes"]),
            }
            for name, sums in states.items()
        ]
        if is_known
        else None,
        "isEstimated": any(each.groups < each.of_groups for each in known),
        "countedAtEpoch": min((each.epoch for each in known), default=None),
    }


def _state_size(handle: Handle) -> dict[str, int]:
    """Return the sizes of the files of a handle, as they are stored."""
    return {
        "baseBytes": 0 if handle.base is None else handle.base.size_bytes,
        "changelogBytes": sum(segment.size_bytes for segment in handle.segments),
        "changelogSegments": len(handle.segments),
    }
