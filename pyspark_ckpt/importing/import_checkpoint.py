"""Import: a stopped query of Spark's own operator becomes a savepoint of this library."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.editing.state_edit import StateEdit
from pyspark_ckpt.editing.typed_frames import columns_of, timer_columns
from pyspark_ckpt.errors import IncompatibleStateError, PlanError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import TimeMode, TtlTime
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.importing.spark_operator import (
    SparkStatefulOperator,
    StateVariable,
    spark_operators,
    struct_of,
)
from pyspark_ckpt.importing.state_rows import (
    VALUE_COLUMNS,
    GroupStateRows,
    Mapper,
    is_stamped,
    state_rows,
    timer_rows,
)
from pyspark_ckpt.importing.stopped_query import failed_read, reading, stopped_query
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.state.kinds import Movement, kind_of
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.settings import read_settings
from pyspark_ckpt.spark.plan import operators_of
from pyspark_ckpt.spark.program import check_frame
from pyspark_ckpt.spark.session import session_in_use
from pyspark_ckpt.spark.state_reader import quiet_reading
from pyspark_ckpt.values.nesting import same_type

_SAVEPOINTS = "spark.ckpt.execution.checkpointing.savepoint-dir"

_ADVICE = (
    "import with the processor as the query of Spark ran it; change it once the query is restored"
)


def import_checkpoint(
    location: str,
    directory: str | None = None,
    *,
    processor: StatefulProcessor | None = None,
    uid: str | None = None,
    operators: Mapping[int, ImportedOperator] | None = None,
    mapper: Mapper | None = None,
    time_mode: str | None = None,
    query: DataFrame | None = None,
    discard_uncommitted: bool = False,
    spark: SparkSession | None = None,
) -> Savepoint:
    """Make a savepoint of a stopped query of Spark's own stateful operators."""
    if query is not None:
        check_frame(query, "import_checkpoint", "query", PlanError)
    frames = () if query is None else (query,)
    session = session_in_use("import_checkpoint", PlanError, spark, *frames)
    directory = _directory(session, directory)
    wanted = _wanted(operators, processor, uid, mapper, time_mode)
    with quiet_reading(session):
        stopped = stopped_query(session, str(location), discard_uncommitted=discard_uncommitted)
        found = spark_operators(session, stopped, _known_ids(wanted, query))
        edit = StateEdit(session)
        given = _matched(found, wanted, stopped.path)
        for operator, imported in zip(found, given, strict=True):
            with reading(operator.where):
                _add(edit, operator, imported)
        places = {each.uid: operator.where for operator, each in zip(found, given, strict=True)}
        edit._failed_read = partial(failed_read, places)  # noqa: SLF001
        edit._position = stopped.position(query)  # noqa: SLF001  # no user has them in this form
        edit._parent = stopped.origin(tuple(each.uid for each in given))  # noqa: SLF001
        return edit.save(directory)


def _wanted(
    operators: Mapping[int, ImportedOperator] | None,
    processor: StatefulProcessor | None,
    uid: str | None,
    mapper: Mapper | None,
    time_mode: str | None,
) -> Mapping[int, ImportedOperator] | ImportedOperator:
    """Return the operators by Spark's ids, or the only operator."""
    if operators is None:
        if processor is None or uid is None:
            raise PlanError(
                "give processor and uid of the operator, or operators if it has several"
            )
        return ImportedOperator(processor, uid, mapper, time_mode)
    if any(each is not None for each in (processor, uid, mapper, time_mode)):
        raise PlanError(
            "operators says processor, uid, mapper and time_mode of each operator: leave these "
            "arguments out"
        )
    uids = [each.uid for each in operators.values()]
    if len(set(uids)) < len(uids):
        raise PlanError(f"operators has a uid twice: {', '.join(map(repr, sorted(uids)))}")
    return operators


def _known_ids(
    wanted: Mapping[int, ImportedOperator] | ImportedOperator, query: DataFrame | None
) -> dict[str, Collection[int]]:
    """Return the ids of operators that the user's arguments have, by the argument."""
    known: dict[str, Collection[int]] = {}
    if not isinstance(wanted, ImportedOperator):
        known["operators="] = list(wanted)
    if query is not None:  # the same program, which Spark numbers in the same way
        known["query="] = range(len(operators_of(query).in_order))
    return known


def _matched(
    found: Sequence[SparkStatefulOperator],
    wanted: Mapping[int, ImportedOperator] | ImportedOperator,
    path: str,
) -> list[ImportedOperator]:
    """Return what each of Spark's operators becomes; all of them are imported, or none."""
    if isinstance(wanted, ImportedOperator):
        if len(found) == 1:
            return [wanted]
        problem = "has several stateful operators"
    elif set(wanted) == {operator.operator_id for operator in found}:
        return [wanted[operator.operator_id] for operator in found]
    else:
        problem = f"has other stateful operators than {', '.join(map(str, sorted(wanted)))}"
    raise PlanError(
        f"{path} {problem}: give operators={{id: ImportedOperator(...)}} with an entry for each "
        f"of {'; '.join(operator.summary for operator in found)}"
    )


def _add(edit: StateEdit, operator: SparkStatefulOperator, imported: ImportedOperator) -> None:
    """Put the state of one of Spark's operators into a savepoint."""
    processor, uid, mapper = imported.processor, imported.uid, imported.mapper
    mode = _time_mode(operator, mapper, imported.time_mode)
    key_schema = operator.key_schema()
    edit.add_operator(uid, processor, key_schema, time_mode=mode.value)
    added = edit._of(uid)  # noqa: SLF001  # init runs only once, and times are in milliseconds
    states = _states_of_keys(added.operator)
    if mapper is None:
        check_states(operator, states, uid)
        for variable in operator.variables:
            columns = columns_of(key_schema, states[variable.name])
            added.put_state(variable.name, state_rows(operator, variable, columns), in_ms=True)
        if mode is not TimeMode.NONE:
            added.put_timers(timer_rows(operator, timer_columns(key_schema)), in_ms=True)
        return
    has_timers = mode is not TimeMode.NONE
    rows = GroupStateRows(operator, mapper, tuple(states), uid, has_timers=has_timers)
    for name, state in states.items():
        added.put_state(name, rows.state(state, columns_of(key_schema, state)), in_ms=True)
    if has_timers:
        added.put_timers(rows.timers(timer_columns(key_schema)), in_ms=True)


def _directory(spark: SparkSession, directory: str | None) -> str:
    if directory is not None:
        return str(directory)
    configured = spark.conf.get(_SAVEPOINTS, None)
    found = configured and read_settings({_SAVEPOINTS: configured}, {}).savepoints_directory
    if not found:
        raise PlanError(f"there is no directory for the savepoint: give one, or set {_SAVEPOINTS}")
    return found


def _time_mode(
    operator: SparkStatefulOperator, mapper: Mapper | None, time_mode: str | None
) -> TimeMode:
    """Return the operator's time mode; refuse arguments that its kind does not have."""
    if operator.is_group_state:
        if mapper is None:
            raise PlanError(
                f"{operator.where} has one state per key: give a mapper, which makes the "
                "processor's states of it"
            )
        allowed = {mode.value.lower(): mode for mode in TimeMode}
        found = allowed.get(str(time_mode).lower())
        if found is None:
            raise PlanError(
                f"time_mode is {time_mode!r}, allowed are None, ProcessingTime and EventTime"
            )
        return found
    if mapper is not None or time_mode is not None:
        raise PlanError(
            f"{operator.where} has the states and the time mode of its processor: leave mapper and "
            "time_mode out, which are for applyInPandasWithState"
        )
    return operator.time_mode


def _states_of_keys(operator: OperatorDescriptor) -> dict[str, StateDescriptor]:
    """Return the states that a processor declares, by name; all have to belong to keys."""
    for state in operator.states:
        if kind_of(state).movement is not Movement.WITH_KEY:
            raise PlanError(
                f"operator {operator.uid!r}, state {state.name!r}: {state.kind} state does not "
                "exist in Spark's operators: import with the processor as the query of Spark ran it"
            )
    return {state.name: state for state in operator.states}


@dataclass(frozen=True, slots=True)
class ImportedOperator:
    """What one operator of a stopped query of Spark becomes; it is given to ``import_checkpoint``.

    Parameters
    ----------
    processor : StatefulProcessor
        The processor that Spark's operator ran. For ``applyInPandasWithState``, the processor that
        replaces its function.
    uid : str
        The operator's uid in the restored query.
    mapper : callable, optional
        Only for ``applyInPandasWithState``, as for :meth:`Location.import_checkpoint`.
    time_mode : str, optional
        Only for ``applyInPandasWithState``, as for :meth:`Location.import_checkpoint`.

    Raises
    ------
    PlanError
        If `uid` is empty.

    Examples
    --------
    >>> ckpt.ImportedOperator(Count(), "count").uid
    'count'
    """

    processor: StatefulProcessor
    uid: str
    mapper: Mapper | None = None
    time_mode: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.uid, str) or not self.uid.strip():
            raise PlanError(f"uid is {self.uid!r}: give the operator a stable name")


def check_states(
    operator: SparkStatefulOperator, declared: dict[str, StateDescriptor], uid: str
) -> None:
    """Check that a processor declares exactly the state variables that Spark has."""
    where = f"{operator.where}, as operator {uid!r}"
    stored = {variable.name: variable for variable in operator.variables}
    unknown = sorted(set(declared) - set(stored))
    missing = sorted(set(stored) - set(declared))
    if unknown or missing:
        raise IncompatibleStateError(
            f"{where}: Spark has the states {_list_text(stored)}, the processor declares "
            f"{_list_text(declared)}: {_ADVICE}"
        )
    for name, variable in stored.items():
        why = _difference(operator, variable, declared[name])
        if why is not None:
            raise IncompatibleStateError(f"{where}: state {name!r} {why}: {_ADVICE}")


def _difference(
    operator: SparkStatefulOperator, variable: StateVariable, state: StateDescriptor
) -> str | None:
    """Return how a declared state differs from Spark's, ``None`` if it does not."""
    if kind_of(state) is not variable.kind:
        return f"is {variable.kind.stored_name} state in Spark, and {state.kind} state here"
    if (state.ttl is not None) != variable.has_ttl:
        here = _ttl(has_ttl=state.ttl is not None)
        return f"{_ttl(has_ttl=variable.has_ttl)} in Spark, and {here} here"
    if state.ttl is not None and state.ttl.time is not TtlTime.PROCESSING_TIME:
        return "expires in processing time in Spark, and in event time here"
    schema = operator.variable(variable).schema
    values = struct_of(schema[VALUE_COLUMNS[variable.kind]])
    if is_stamped(values, variable):
        values = struct_of(values["value"])
    pairs = [("values", values, struct_type(state.value_schema))]
    if state.map_key_schema is not None:
        pairs.append(
            ("map keys", struct_of(schema["user_map_key"]), struct_type(state.map_key_schema))
        )
    for what, stored, wanted in pairs:
        if not same_type(stored, wanted, nullability=False):
            return f"has {what} of {_text(stored)} in Spark, and of {_text(wanted)} here"
    return None


def _text(schema: T.StructType) -> str:
    return schema.simpleString()


def _ttl(*, has_ttl: bool) -> str:
    return "has a time to live" if has_ttl else "has no time to live"


def _list_text(names: dict[str, StateDescriptor] | dict[str, StateVariable]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
