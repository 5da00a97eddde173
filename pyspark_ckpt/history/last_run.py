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


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """The runs of a query that may go on, because nothing says that they have ended.

    `started` are their starts, oldest first. `has_unknown` says that there is one more, whose start
    cannot be read.
    """

    started: tuple[RunStarted, ...]
    has_unknown: bool

    @classmethod
    def of(
        cls,
        records: Sequence[RunStarted | RunEnded],
        newest: RunNote | None,
        *,
        has_unread: bool = False,
    ) -> OpenRuns:
        """Return them without comparing times, which may be of several hosts.

        A run that has reported an epoch has taken the query over from the runs before it.

        `records` must be ordered oldest first. `has_unread` says whether a start cannot be read,
        such as one of a newer version.
        """
        starts = [each for each in records if isinstance(each, RunStarted)]
        ended = {each.run_id for each in records if isinstance(each, RunEnded)}
        ids = [each.run_id for each in starts]
        is_known = newest is None or newest.run_id in {*ids, *ended}
        if newest is not None and newest.epoch is not None and newest.run_id in ids:
            starts = starts[ids.index(newest.run_id) :]
        return cls(
            tuple(each for each in starts if each.run_id not in ended),
            has_unread or not is_known,
        )

    @property
    def may_run(self) -> bool:
        """Whether there is one."""
        return bool(self.started) or self.has_unknown

    def __str__(self) -> str:
        runs = [f"run {each.run_id}, started by {each.started_by}" for each in self.started]
        return "; ".join([*runs, *["a run whose start cannot be read"] * self.has_unknown])


def last_run(
    records: Sequence[RunStarted | RunEnded],
    note: RunNote | None,
    now_ms: int,
    checkpointed_at_ms: int | None = None,
) -> LastRun:
    """Return what the records say of a query's last run.

    `records` must be ordered oldest first. `checkpointed_at_ms` is when the newest checkpoint was
    complete.
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
