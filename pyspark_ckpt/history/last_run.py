"""What the records of a query's runs say of its last run: whether it runs, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pyspark_ckpt.history.run_record import RunEnded, RunNote, RunStarted

SILENCE_MS = 120_000
"""After this time without a sign of life a run is no longer called running: four notes."""


class RunState(str, Enum):
    """What a query's last run is doing, as far as its directory says."""

    RUNNING = "running"
    SILENT = "no sign of life"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class LastRun:
    """The last run of a query. `alive_at_ms` is its last sign of life."""

    state: RunState
    started: RunStarted | None
    ended: RunEnded | None
    alive_at_ms: int | None


def _end_of(records: Sequence[RunStarted | RunEnded], started: RunStarted) -> RunEnded | None:
    """Return the newest end of a run: one that ended may fail behind it, at a restart."""
    ends = [
        each for each in records if isinstance(each, RunEnded) and each.run_id == started.run_id
    ]
    return ends[-1] if ends else None


def last_run(
    records: Sequence[RunStarted | RunEnded],
    note: RunNote | None,
    now_ms: int,
    checkpointed_at_ms: int | None = None,
) -> LastRun:
    """Return what the records say of a query's last run.

    Parameters
    ----------
    records
        Starts and ends, oldest first.
    note
        The newest note.
    now_ms
        The time now.
    checkpointed_at_ms
        When the newest checkpoint was complete.
    """
    starts = [each for each in records if isinstance(each, RunStarted)]
    if not starts:
        return LastRun(RunState.UNKNOWN, None, None, checkpointed_at_ms)
    started, ended = starts[-1], _end_of(records, starts[-1])
    if note is not None and ended is not None and note.at_ms > ended.at_ms:
        # A driver that was started beside another one, and was fenced: the other one runs on.
        others = [each for each in starts if each.run_id == note.run_id]
        if others and _end_of(records, others[-1]) is None:
            started, ended = others[-1], None
    signs = [started.at_ms, checkpointed_at_ms or 0]
    if note is not None and note.run_id == started.run_id:
        signs.append(note.at_ms)
    if ended is not None:
        state = RunState.STOPPED if ended.error is None else RunState.FAILED
        return LastRun(state, started, ended, ended.at_ms)
    alive_at_ms = max(signs)
    is_silent = now_ms - alive_at_ms > SILENCE_MS
    return LastRun(RunState.SILENT if is_silent else RunState.RUNNING, started, None, alive_at_ms)
