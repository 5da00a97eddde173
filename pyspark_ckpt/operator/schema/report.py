"""The report on an operator's stored states: what happens to each when the query starts.

It is printed as a plain-text table, in errors and on terminals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.verdict import (
    StateOutcome,
    StateSchema,
    StateVerdict,
    judge_state,
    schema_text,
    state_text,
)
from pyspark_ckpt.text_table import text_table
from pyspark_ckpt.values.nesting import same_type

LIBRARY_PREFIX = "__quarantine"
"""Prefix of the names of states that the library keeps, which no processor asks for."""

ROWS_STATE = f"{LIBRARY_PREFIX}_rows"
"""The state of the rows of quarantined keys. Its schema never evolves."""

KEY = "(key)"
"""Stands in the report for the operator's key."""

_NONE = "-"
_CELL_WIDTH = 48
_HEADER = ("state", "stored", "wanted", "verdict", "what to do")


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """The key and states of an operator, as a subtask stores them or a processor wants them."""

    key_schema: T.StructType
    states: tuple[StateSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class EvolutionReport:
    """The verdicts on an operator's key and states."""

    uid: str
    verdicts: tuple[StateVerdict, ...]

    @property
    def refused(self) -> tuple[StateVerdict, ...]:
        """The verdicts that prevent the query from starting."""
        return tuple(row for row in self.verdicts if row.verdict is StateOutcome.REFUSED)

    def check(self) -> None:
        """Raise if anything is refused."""
        if self.refused:
            names = ", ".join(dict.fromkeys(repr(row.state) for row in self.refused))
            raise IncompatibleStateError(
                f"operator {self.uid!r}: what is stored of {names} does not fit what the processor "
                "asks for; nothing was changed, the report says what to do\n\n"
                f"{self.render()}"
            )

    def render(self) -> str:
        """Return the report as a table in plain text."""
        rows = [
            (row.state, row.stored, row.wanted, row.verdict.value, row.what_to_do)
            for row in self.verdicts
        ]
        return f"operator {self.uid!r}\n{text_table(_HEADER, rows, _CELL_WIDTH)}"


def check(
    uid: str,
    stored: Collection[OperatorSchema],
    wanted: OperatorSchema,
    migrations: Mapping[str, Migration],
) -> EvolutionReport:
    """Check that a query can start with an operator's stored state; on the driver.

    The parameters are those of :func:`compare_operator`.
    """
    report = compare_operator(uid, stored, wanted, migrations)
    report.check()
    return report


def compare_operator(
    uid: str,
    stored: Collection[OperatorSchema],
    wanted: OperatorSchema,
    migrations: Mapping[str, Migration],
) -> EvolutionReport:
    """Compare what is stored of an operator with what its processor asks for; on the driver.

    `stored` has each different schema of the subtasks' handles once, and is empty if nothing is
    stored. A subtask that got no rows after an evolution still has the older schemas. `migrations`
    are given by the name of the wanted state.
    """
    check_migrations(uid, wanted.states, migrations)
    if not stored:
        return EvolutionReport(uid, tuple(_new(state) for state in wanted.states))
    names = {state.name for one in stored for state in one.states}
    found: dict[StateVerdict, None] = {}
    for one in stored:
        found.update(dict.fromkeys(_verdicts(one, wanted, migrations, names)))
    # A state that is new to some subtasks only is not new.
    known = {row.state for row in found if row.verdict is not StateOutcome.NEW}
    rows = [row for row in found if row.verdict is not StateOutcome.NEW or row.state not in known]
    kept = [row for row in rows if row.verdict is StateOutcome.KEPT]
    rows = [_perhaps_renamed(row, kept) for row in rows]
    order = [KEY, *(state.name for state in wanted.states)]
    rows.sort(key=lambda row: order.index(row.state) if row.state in order else len(order))
    return EvolutionReport(uid, tuple(rows))


def check_migrations(
    uid: str, wanted: Collection[StateSchema], migrations: Mapping[str, Migration]
) -> None:
    """Check that migrations fit the states that a processor asks for; on the driver."""
    states = {state.name: state for state in wanted}
    sources: dict[str, str] = {}
    for name, migration in migrations.items():
        where = f"operator {uid!r}: the migration of state {name!r}"
        if name not in states:
            raise PlanError(
                f"{where} is for none that init asks for ({_names(states)}); correct it"
            )
        if migration.key is not None and states[name].map_key_schema is None:
            raise PlanError(f"{where} has key=, but a {states[name].kind} state has none; leave it")
        source = migration.renamed_from
        if source is None:
            continue
        if source in states:
            raise PlanError(f"{where} renames from {source!r}, which init asks for; use a new name")
        if source in sources:
            raise PlanError(f"{where} renames from {source!r}, as that of {sources[source]!r} does")
        sources[source] = name


def _verdicts(
    stored: OperatorSchema,
    wanted: OperatorSchema,
    migrations: Mapping[str, Migration],
    names: set[str],
) -> Iterator[StateVerdict]:
    yield _judge_key(stored.key_schema, wanted.key_schema)
    states = {state.name: state for state in stored.states}
    for state in wanted.states:
        yield _verdict(states, state, migrations.get(state.name), names)
    asked_for = {state.name for state in wanted.states}
    renamed = {migration.renamed_from for migration in migrations.values()}
    for name, state in states.items():
        if name not in asked_for | renamed and not name.startswith(LIBRARY_PREFIX):
            change = f"it stays stored; deleteIfExists({name!r}) in init removes it"
            yield StateVerdict(name, state_text(state), _NONE, StateOutcome.KEPT, (change,))


def _verdict(
    stored: Mapping[str, StateSchema],
    wanted: StateSchema,
    migration: Migration | None,
    names: set[str],
) -> StateVerdict:
    """Return the verdict on a wanted state; `names` are the states that any subtask has stored."""
    source = None if migration is None else migration.renamed_from
    if source in stored and wanted.name in stored:
        return _refuse_source(
            wanted,
            state_text(stored[wanted.name]),
            f"{wanted.name!r} and {source!r}, which it is renamed from, are both stored: use a new "
            "name, or take renamed_from out of the migration to continue with what is stored",
        )
    if source is not None and names and not {source, wanted.name} & names:
        return _refuse_source(
            wanted,
            _NONE,
            f"no state {source!r} is stored ({_names(names)}): correct renamed_from, or take it "
            "out of the migration to start empty",
        )
    found = stored.get(source or "") or stored.get(wanted.name)
    return _new(wanted) if found is None else judge_state(found, wanted, migration)


def _new(wanted: StateSchema) -> StateVerdict:
    text = state_text(wanted)
    return StateVerdict(wanted.name, _NONE, text, StateOutcome.NEW, ("it starts empty",))


def _perhaps_renamed(row: StateVerdict, kept: Sequence[StateVerdict]) -> StateVerdict:
    """Return a verdict that says how a new state continues one that is no longer asked for."""
    alike = [each.state for each in kept if each.stored == row.wanted]
    if row.verdict is not StateOutcome.NEW or not alike:
        return row
    change = (
        f"it starts empty; to continue with {' or '.join(map(repr, alike))}, add its "
        "ckpt.Migration(renamed_from=...)"
    )
    return replace(row, changes=(change,))


def _refuse_source(wanted: StateSchema, stored_text: str, refusal: str) -> StateVerdict:
    return StateVerdict(
        wanted.name, stored_text, state_text(wanted), StateOutcome.REFUSED, refusal=refusal
    )


def _judge_key(stored: T.StructType, wanted: T.StructType) -> StateVerdict:
    # Whether a key column may be null depends on the query's input; nothing stored depends on it.
    if same_type(stored, wanted, nullability=False):
        outcome, refusal = StateOutcome.RESTORED, None
    else:
        outcome = StateOutcome.REFUSED
        refusal = "key_by the stored columns in their order, with their types, or use a new uid"
    return StateVerdict(KEY, schema_text(stored), schema_text(wanted), outcome, refusal=refusal)


def _names(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"
