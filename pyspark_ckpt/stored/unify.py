"""One list of states for all subtasks of an operator, for state that moves between subtasks.

Subtasks may differ, because a subtask without rows does not get new schemas or times to live, and
may number its states in another order. The states of the newest subtask count. Entries of the
others are rewritten if the newest subtask could not read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.errors import IncompatibleStateError, PlanError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.evolution import Verdict, compare
from pyspark_ckpt.operator.schema.report import ROWS_STATE
from pyspark_ckpt.operator.schema.verdict import used_migration
from pyspark_ckpt.operator.state.kinds import StateKind, kind_of
from pyspark_ckpt.operator.state.migration import EntryRewrite, schema_of
from pyspark_ckpt.operator.table.catalog import is_beginning, same_schema, struct_type
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES
from pyspark_ckpt.operator.table.time_to_live import stamp_of


@dataclass(frozen=True, slots=True)
class StateMove:
    """The change of a state's entries: another id, another form, a time that they lacked."""

    target_id: int
    rewrite: EntryRewrite | None
    stamp: bytes


@dataclass(frozen=True, slots=True)
class _Member:
    """A state as one subtask stores it."""

    epoch: int
    subtask: int
    state: StateDescriptor


class UnifiedStates:
    """The states that each new subtask gets, made of the states of all old subtasks.

    It is made on the driver, which refuses what cannot be unified, and shipped to executors.

    `migrations` are given by the name of the wanted state, and are done while the state moves.
    """

    def __init__(
        self,
        uid: str,
        handles: Iterable[Handle],
        wanted: Sequence[StateDescriptor] = (),
        migrations: Mapping[str, Migration] | None = None,
    ) -> None:
        self._uid = uid
        self._migrations = migrations or {}
        self._wanted = {state.name: state for state in wanted}
        members = self._members(handles)
        if len(members) > MAX_STATES:
            raise PlanError(f"operator {uid!r} has more than {MAX_STATES} states: remove some")
        self._ids = {name: number for number, name in enumerate(members)}
        self.states = tuple(self._merge(name, found) for name, found in members.items())

    def moves(self, handle: Handle) -> dict[int, StateMove]:
        """Return what becomes of the entries of each of a subtask's states, by their id.

        A state that is not in the result was deleted, and its entries are dropped.
        """
        return {
            state_id: self._move(state, handle.subtask)
            for state_id, state in enumerate(handle.states)
            if _is_there(state)
        }

    def are_those_of(self, handle: Handle) -> bool:
        """Return whether the entries of a subtask stay as they are."""
        moves = self.moves(handle)
        return len(moves) == len(handle.states) and all(
            move.target_id == state_id and move.rewrite is None and not move.stamp
            for state_id, move in moves.items()
        )

    def _members(self, handles: Iterable[Handle]) -> dict[str, list[_Member]]:
        """Return the states of all subtasks by their names from now on, the newest first."""
        members: dict[str, list[_Member]] = {}
        newest_first = sorted(handles, key=lambda handle: (-handle.epoch, handle.subtask))
        for handle in newest_first:
            for state in filter(_is_there, handle.states):
                name = self._new_name(state)
                members.setdefault(name, []).append(_Member(handle.epoch, handle.subtask, state))
        return members

    def _new_name(self, state: StateDescriptor) -> str:
        for name, migration in self._migrations.items():
            if migration.renamed_from == state.name:
                return name
        return state.name

    def _migration_of(self, state: StateDescriptor) -> Migration | None:
        """Return the migration that is used for a stored state, if there is one."""
        name = self._new_name(state)
        if name not in self._wanted:
            return None
        return used_migration(
            schema_of(state), schema_of(self._wanted[name]), self._migrations.get(name)
        )

    def _merge(self, name: str, members: Sequence[_Member]) -> StateDescriptor:
        unmigrated = [one for one in members if self._migration_of(one.state) is None]
        if unmigrated:
            newest = max(unmigrated, key=lambda one: (one.epoch, len(one.state.earlier_schemas)))
            merged = newest.state
        else:
            merged = msgspec.structs.replace(
                self._wanted[name], ttl=members[0].state.ttl, is_stamped=True
            )
        for one in members:
            self._check(name, one, merged)
        ttl = merged.ttl
        if ttl is not None and len({_since_ms(one.state, merged) for one in members}) > 1:
            ttl = msgspec.structs.replace(ttl, since_ms=None)
        elif ttl is not None:
            ttl = msgspec.structs.replace(ttl, since_ms=_since_ms(members[0].state, merged))
        is_stamped = ttl is not None or any(one.state.is_stamped for one in members)
        return msgspec.structs.replace(merged, ttl=ttl, is_stamped=is_stamped or merged.is_stamped)

    def _check(self, name: str, member: _Member, merged: StateDescriptor) -> None:
        state = member.state
        if name == ROWS_STATE and state.value_schema != merged.value_schema:
            raise IncompatibleStateError(
                f"operator {self._uid!r}: subtask {member.subtask}, whose last epoch is "
                f"{member.epoch}, keeps rows of quarantined keys with columns "
                f"{state.value_schema}; those of newer subtasks have {merged.value_schema}: "
                "continue with the first columns at the old parallelism, and release the keys"
            )
        migration = self._migration_of(state)
        values = compare(struct_type(state.value_schema), struct_type(merged.value_schema))
        migrates_value = migration is not None and migration.value is not None
        migrates_key = migration is not None and migration.key is not None
        if (
            state.kind != merged.kind
            or (values.verdict is Verdict.INCOMPATIBLE and not migrates_value)
            or not (migrates_key or same_schema(state.map_key_schema, merged.map_key_schema))
        ):
            raise IncompatibleStateError(
                f"operator {self._uid!r}: subtask {member.subtask}, whose last epoch is "
                f"{member.epoch}, stores state {state.name!r} in a form that cannot become that of "
                f"{name!r} in newer subtasks ({'; '.join(values.refused) or 'another kind'}): give "
                "its migration to restoreFrom(..., migrations=...), or restore at the old "
                "parallelism"
            )

    def _move(self, state: StateDescriptor, subtask: int) -> StateMove:
        target_id = self._ids[self._new_name(state)]
        target = self.states[target_id]
        where = f"operator {self._uid!r}, subtask {subtask}, state {state.name!r}"
        migration = self._migration_of(state)
        rewrite = None
        if migration is not None or not _is_read_by(state, target):
            rewrite = EntryRewrite(state, target, migration, where)
        stamp = b""
        since_ms = _since_ms(state, target)
        if target.ttl is not None and target.ttl.since_ms is None and since_ms is not None:
            stamp = stamp_of(target.ttl.time, since_ms)
        return StateMove(target_id, rewrite, stamp)


def _is_there(state: StateDescriptor) -> bool:
    return state.sweeps is None


def _since_ms(state: StateDescriptor, merged: StateDescriptor) -> int | None:
    """Return when entries without a stamp begin to age, in the time that the state ages in."""
    if state.ttl is None or merged.ttl is None or state.ttl.time != merged.ttl.time:
        return None
    return state.ttl.since_ms


def _is_read_by(state: StateDescriptor, target: StateDescriptor) -> bool:
    """Return whether entries keep the place of their schema in the target's history."""
    history = (*state.earlier_schemas, state.value_schema)
    return is_beginning(history, (*target.earlier_schemas, target.value_schema))


def newest_of(handles: Iterable[Handle]) -> Handle:
    """Return the handle whose broadcast state all new subtasks get.

    It is that of the last epoch. Of several, it is the first one that has the broadcast states: an
    edit gives a subtask that had no epoch none of them.
    """
    return min(
        handles, key=lambda handle: (-handle.epoch, -_broadcast_states(handle), handle.subtask)
    )


def _broadcast_states(handle: Handle) -> int:
    return sum(
        state.sweeps is None and kind_of(state) is StateKind.BROADCAST for state in handle.states
    )
