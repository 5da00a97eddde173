"""What a restore does with each operator and with the sources; the parts of a restore's plan.

Planning makes these records, seeding carries them out, and a plan prints their rows. A record
holds all that seeding needs, so that seeding decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import OperatorMetadata, SourceLog
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.schema.verdict import StateOutcome
from pyspark_ckpt.spark.log import Sources
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.stored.division import Share
from pyspark_ckpt.stored.unify import UnifiedStates


class Action(Enum):
    """What a restore does with the stored state of an operator."""

    COPY = "copy"
    MOVE = "move"
    NEW = "new"
    DROP = "drop"
    REFUSE = "refuse"


WHOLE_OPERATOR = "(operator)"
"""Stands in a row for the operator itself."""

UNCHANGED = "nothing changes"


@dataclass(frozen=True, slots=True)
class PlannedState:
    """What a restore would do with one state, or with the operator as a whole.

    Parameters
    ----------
    operator : str
        The operator's uid; ``(query)`` for the query as a whole.
    state : str
        The state's name; ``(operator)`` for the operator as a whole, ``(key)`` for its key.
    outcome : str
        ``restored``, ``evolved`` (its schema), ``migrated`` (by a function), ``kept`` (restored,
        but not in the program), ``dropped``, ``new`` or ``refused``.
    why : str
        What changes, or what to do.
    removed_fields : tuple of str
        The paths of the fields that the program no longer has, which stored values drop.

    Examples
    --------
    >>> plan = ckpt.location(savepoint.path).plan(counts)
    >>> [row.outcome for row in plan.states if row.state == "count"]
    ['restored']
    """

    operator: str
    state: str
    outcome: str
    why: str
    removed_fields: tuple[str, ...] = ()


def planned_state(
    operator: str,
    state: str,
    outcome: StateOutcome,
    why: str,
    removed_fields: tuple[str, ...] = (),
) -> PlannedState:
    """Return a row of the plan."""
    return PlannedState(operator, state, outcome.value, why, removed_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPart:
    """A part of a plan: its rows, and the errors that keep the query from starting."""

    rows: tuple[PlannedState, ...] = ()
    errors: tuple[CkptError, ...] = ()


def refused_part(operator: str, state: str, *errors: CkptError) -> PlannedPart:
    """Return a part that has one row for each error."""
    rows = (planned_state(operator, state, StateOutcome.REFUSED, str(one)) for one in errors)
    return PlannedPart(rows=tuple(rows), errors=errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOperator(PlannedPart):
    """What a restore does with one operator of this library, stored or in the query."""

    action: ClassVar[Action]
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedOperator(PlannedOperator):
    """The query cannot start with this operator; `errors` say why."""

    action = Action.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedOperator(PlannedOperator):
    """The query does not have this operator; its state is not restored."""

    action = Action.DROP


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOperator(PlannedOperator):
    """Nothing is stored for this operator; it starts empty."""

    action = Action.NEW
    operator_id: int
    wanted: OperatorDescriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedOperator(PlannedOperator):
    """Each subtask gets copies of the files that its handle names."""

    action = Action.COPY
    operator_id: int
    wanted: OperatorDescriptor
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedOperator(PlannedOperator):
    """The state moves to other subtasks, key groups or schemas.

    `states` are those that all new subtasks have. `shares` says which key groups each new subtask
    takes over as they are; it is ``None`` if entries go through a shuffle.
    """

    action = Action.MOVE
    operator_id: int
    wanted: OperatorDescriptor
    stored: OperatorMetadata
    states: UnifiedStates
    shares: tuple[Share, ...] | None


@dataclass(frozen=True, slots=True)
class SparkStateFile:
    """A stored file of one of Spark's own operators; `name` is its path below the operator's."""

    operator_id: int
    name: str
    file: FileReference


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSparkOperator(PlannedPart):
    """What a restore does with one of Spark's own operators.

    Of several of one name the second is called ``<name> 2``. `files` are copied.
    """

    name: str
    action: Action
    files: tuple[SparkStateFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSparkOperators:
    """What a restore does with Spark's own operators.

    If any is copied, `store_conf` are the settings under which further state stores fit theirs,
    and `epoch_conf` are the settings that Spark's log shall have for the epoch.
    """

    operators: tuple[PlannedSparkOperator, ...] = ()
    store_conf: dict[str, str] | None = None
    epoch_conf: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSources(PlannedPart):
    """Where the query's sources continue.

    `offsets` are in the order of the places at which the query reads its sources. `file_logs` are
    entries of file sources' logs, `other_logs` are the logs of other sources. `times_ms` are the
    times of the epoch, by Spark's names. `sources` are the query's sources.
    """

    offsets: tuple[str, ...] = ()
    file_logs: tuple[SourceLog, ...] = ()
    other_logs: tuple[SourceLog, ...] = ()
    times_ms: dict[str, int]
    sources: Sources = field(default_factory=lambda: Sources(()))
