"""What a subtask counts in an epoch: each counter is declared once, in the struct that stores it.

Progress, records of runs, the history, the console, the reporters of metrics and their pages in the
documentation are made from the declarations. To add a counter, add a field with its declaration to
:class:`EpochCounters`, and fill it where the library counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, get_type_hints

import msgspec


class Unit(Enum):
    """The unit of a metric; the value is what Prometheus appends to the name."""

    NONE = ""
    BYTES = "bytes"
    SECONDS = "seconds"

    @property
    def code(self) -> str:
        """The unit as OpenTelemetry writes it."""
        return {"bytes": "By", "seconds": "s"}.get(self.value, "1")


class OverSubtasks(Enum):
    """What the subtasks of an operator make together."""

    SUM = "sum"
    SLOWEST = "slowest"

    def of(self, values: Iterable[int]) -> int:
        """Return the value of the operator."""
        return sum(values) if self is OverSubtasks.SUM else max(values, default=0)


@dataclass(frozen=True, slots=True)
class Counter:
    """A figure of a subtask in an epoch; the name of its field is its name in stored files.

    `progress` is its name in ``lastOperatorProgress``. `metric` is its name in the reporters,
    without which they do not have it, and `flink` is Flink's metric for the same thing. A counter
    that `lasts` keeps its value while Spark does not call the subtask; others are then 0.
    `in_history` makes it a column of ``subtask_history``, `in_console` one of the console's
    subtasks.
    """

    progress: str
    metric: str
    help: str
    flink: str = ""
    over: OverSubtasks = OverSubtasks.SUM
    unit: Unit = Unit.NONE
    lasts: bool = False
    in_history: bool = False
    in_console: bool = False

    def reported(self, value: int) -> float:
        """Return a value in the unit of the metric; stored times are in milliseconds."""
        return value / 1000 if self.unit is Unit.SECONDS else value


_time = partial(Counter, over=OverSubtasks.SLOWEST, unit=Unit.SECONDS)
_in_both = partial(Counter, in_history=True, in_console=True)
_time_in_both = partial(_time, in_history=True, in_console=True)


class EpochCounters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The work of a subtask in an epoch, or of all subtasks of an operator.

    Fields with their default are not encoded, because most are 0 in most epochs.
    """

    rows: Annotated[
        int,
        Counter(
            "numInputRows",
            "operator_input_rows",
            "Input rows",
            flink="numRecordsIn",
            in_console=True,
        ),
    ] = 0
    keys: Annotated[
        int, _in_both("numKeysTouched", "operator_keys", "Keys that had rows or timers")
    ] = 0
    late_rows: Annotated[
        int,
        Counter(
            "numLateRows",
            "operator_late_rows",
            "Input rows that were late, which the processor got as such",
        ),
    ] = 0
    reads: Annotated[
        int,
        Counter("numStateReads", "operator_state_reads", "State entries that the processor read"),
    ] = 0
    cache_hits: Annotated[
        int,
        Counter(
            "numCacheHits",
            "operator_cache_hits",
            "State entries that were read ahead or written before",
        ),
    ] = 0
    writes: Annotated[
        int,
        _in_both("numStateWrites", "operator_state_writes", "State entries that were written"),
    ] = 0
    timers_fired: Annotated[
        int, Counter("numTimersFired", "operator_timers_fired", "Timers that fired")
    ] = 0
    expired: Annotated[
        int,
        Counter(
            "numExpired",
            "operator_expired_entries",
            "Entries that were removed: their time to live was over, or their state was deleted",
        ),
    ] = 0
    quarantined_keys: Annotated[
        int,
        Counter(
            "numQuarantinedKeys",
            "operator_quarantined_keys",
            "Keys whose processor raised, until released",
            lasts=True,
        ),
    ] = 0
    quarantined_rows: Annotated[
        int,
        Counter(
            "numQuarantinedRows",
            "operator_quarantined_rows",
            "Rows that are kept of quarantined keys",
            lasts=True,
        ),
    ] = 0
    requests: Annotated[
        int,
        Counter(
            "numRequests",
            "operator_requests",
            "Requests of the tasks to the storage, up to the end of the barrier; 0 on a disk",
        ),
    ] = 0
    open_ms: Annotated[
        int,
        _time_in_both(
            "openTimeMs",
            "operator_open_duration",
            "Time to open the local copy of the state, or to rebuild it",
        ),
    ] = 0
    process_ms: Annotated[
        int,
        _time_in_both(
            "processTimeMs",
            "operator_process_duration",
            "Time to process rows, with the wait for input and for Spark to take the output",
        ),
    ] = 0
    barrier_ms: Annotated[
        int,
        _time_in_both(
            "barrierTimeMs",
            "operator_barrier_duration",
            "Time to make the epoch durable; Spark's epochs need no alignment",
            flink="checkpointAlignmentTime",
        ),
    ] = 0
    rebuilds: Annotated[
        int,
        Counter(
            "numRebuilds",
            "operator_rebuilds",
            "Local copies that were rebuilt from stored files",
            in_history=True,
        ),
    ] = 0
    packed_hand_overs: Annotated[
        int,
        Counter(
            "numPackedHandOvers",
            "",
            "Subtasks whose rows came through pandas rather than Arrow; the worker's log says why",
        ),
    ] = 0


class EpochMetrics(EpochCounters, frozen=True, kw_only=True, omit_defaults=True):
    """What a subtask counted in the epoch of its handle.

    `lost_attributes` are attributes of the processor that it changed outside of state. `backend`
    has the backend's own figures at the end of the epoch, except zeros; it is empty unless metrics
    are reported.
    """

    lost_attributes: tuple[str, ...] = ()
    backend: dict[str, int] = {}


class EpochPhases(msgspec.Struct, frozen=True, array_like=True):
    """The time of a subtask in an epoch, by phase.

    `began_ms` is the time from the epoch's timestamp to the begin of the task; the first comes from
    the driver's clock, the second from the executor's.
    """

    epoch: int
    began_ms: int
    open_ms: int
    read_ms: Annotated[
        int,
        _time(
            "readTimeMs",
            "operator_read_duration",
            "Part of the time to process rows: wait for input, group it, read its states ahead",
        ),
    ]
    user_ms: Annotated[
        int,
        _time(
            "userTimeMs",
            "operator_user_duration",
            "Part of the time to process rows: the processor, with its calls of states",
        ),
    ]
    write_ms: Annotated[
        int,
        _time(
            "writeTimeMs",
            "operator_write_duration",
            "Part of the time to process rows: make Arrow of the output, wait for Spark to take it",
        ),
    ]
    barrier_ms: int

    @property
    def total_ms(self) -> int:
        """The time from the begin to the end of the task's work."""
        return self.open_ms + self.read_ms + self.user_ms + self.write_ms + self.barrier_ms


def _declared(struct: type[msgspec.Struct]) -> dict[str, Counter]:
    return {
        field: each
        for field, hint in get_type_hints(struct, include_extras=True).items()
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, Counter)
    }


OF_METRICS: Mapping[str, Counter] = _declared(EpochCounters)
OF_PHASES: Mapping[str, Counter] = _declared(EpochPhases)

COUNTERS: Mapping[str, Counter] = {**OF_METRICS, **OF_PHASES}
"""All counters, by their fields."""
