"""The verdict on one state: a comparison of the stored state with the wanted one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pyspark.sql import types as T

from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.evolution import Evolution, Verdict, compare
from pyspark_ckpt.values.nesting import same_type


@dataclass(frozen=True, slots=True)
class StateSchema:
    """A state as it is stored, or as a processor wants it.

    `kind` is ``value``, ``list``, ``map``, ``reducing``, ``aggregating``, ``operator-list`` or
    ``broadcast``. `ttl` is a text, and ``None`` if the state does not expire. `earlier` has the
    schemas of values before the stored one, oldest first.
    """

    name: str
    kind: str
    value_schema: T.StructType
    map_key_schema: T.StructType | None = None
    ttl: str | None = None
    earlier: tuple[T.StructType, ...] = ()


class StateOutcome(Enum):
    """What becomes of a state when a query starts; reports and plans say it with these words."""

    RESTORED = "restored"
    EVOLVED = "evolved"
    """Its entries are read with the schema that the program declares."""

    MIGRATED = "migrated"
    """A function of the user converts its entries."""

    NEW = "new"
    KEPT = "kept"
    """It is restored, and the program does not declare it."""

    DROPPED = "dropped"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StateVerdict:
    """The verdict on one state: a row of the report.

    `changes` is empty if the state stays as it is or is refused. `refusal` is ``None`` if the state
    is not refused. `removed_fields` and `advice` are given only for a state that is not refused.
    """

    state: str
    stored: str
    wanted: str
    verdict: StateOutcome
    changes: tuple[str, ...] = ()
    refusal: str | None = None
    removed_fields: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why the state is refused, or what changes and what to look at; empty if nothing is."""
        return self.refusal or ". ".join(filter(None, ("; ".join(self.changes), *self.advice)))

    @property
    def what_to_do(self) -> str:
        """What the user has to do, and why, as the report shows it."""
        if self.refusal is not None or self.advice:
            return self.why
        return ": ".join(filter(None, ("nothing", self.why)))


def judge_state(
    stored: StateSchema, wanted: StateSchema, migration: Migration | None = None
) -> StateVerdict:
    """Return the verdict on a stored state; on the driver.

    If `stored` has another name, the state is renamed. :class:`Migration` says when it is used.
    """
    used = used_migration(stored, wanted, migration)
    changes: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    refusal = _refusal(stored, wanted, used)
    if refusal is not None:
        outcome = StateOutcome.REFUSED
    elif changes := _changes(stored, wanted, used):
        outcome = StateOutcome.EVOLVED if used is None else StateOutcome.MIGRATED
        values = _values(stored, wanted, used)
        removed, advice = values.removed, values.advice
    else:
        outcome = StateOutcome.RESTORED
        if migration is not None:
            changes = ("it is stored as asked for, its migration is not used",)
    return StateVerdict(
        wanted.name,
        state_text(stored),
        state_text(wanted),
        outcome,
        changes,
        refusal,
        removed,
        advice,
    )


def used_migration(
    stored: StateSchema, wanted: StateSchema, migration: Migration | None
) -> Migration | None:
    """Return the migration if the stored data needs it; on driver and executor."""
    if migration is None:
        return None
    if stored.name != wanted.name:
        return migration
    # Data under the new name is already migrated.
    if migration.renamed_from is not None:
        return None
    values = compare(stored.value_schema, wanted.value_schema)
    is_as_asked_for = values.verdict is Verdict.SAME and _same_keys(stored, wanted)
    return None if is_as_asked_for else migration


def state_text(state: StateSchema) -> str:
    """Return kind, schemas and TTL of a state in words."""
    keys = "" if state.map_key_schema is None else f"{schema_text(state.map_key_schema)} to "
    ttl = "" if state.ttl is None else f", ttl {state.ttl}"
    return f"{state.kind} of {keys}{schema_text(state.value_schema)}{ttl}"


def schema_text(schema: T.StructType) -> str:
    """Return a schema as a user would write it."""
    fields = [
        f"{field.name} {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
        for field in schema.fields
    ]
    return f"({', '.join(fields)})"


def _refusal(stored: StateSchema, wanted: StateSchema, migration: Migration | None) -> str | None:
    if stored.kind != wanted.kind:
        return (
            f"the kind changed from {stored.kind} to {wanted.kind}, which no migration can do: "
            "give it back its kind, or use a new name"
        )
    values = _values(stored, wanted, migration)
    keys = _keys(stored, wanted, migration)
    refused = (*values.refused, *keys.refused)
    if not refused:
        return None
    needed = [f"{part}=" for part, it in (("value", values), ("key", keys)) if it.refused]
    return (
        f"{'; '.join(refused)}. Give a Migration with {' and '.join(needed)} for state "
        f"{wanted.name!r}, give it back its stored schema, or use a new name"
    )


def _changes(
    stored: StateSchema, wanted: StateSchema, migration: Migration | None
) -> tuple[str, ...]:
    return (
        *_by_migration(stored, wanted, migration),
        *_values(stored, wanted, migration).changes,
        *_ttl(stored, wanted),
    )


def _same_keys(stored: StateSchema, wanted: StateSchema) -> bool:
    if stored.map_key_schema is None or wanted.map_key_schema is None:
        return stored.map_key_schema is wanted.map_key_schema
    return same_type(stored.map_key_schema, wanted.map_key_schema)


def _values(stored: StateSchema, wanted: StateSchema, migration: Migration | None) -> Evolution:
    if migration is not None and migration.value is not None:
        return Evolution()
    return compare(stored.value_schema, wanted.value_schema, stored.earlier)


def _keys(stored: StateSchema, wanted: StateSchema, migration: Migration | None) -> Evolution:
    if (migration is not None and migration.key is not None) or _same_keys(stored, wanted):
        return Evolution()
    text = "the schema of the map's keys changed: not without a migration"
    return Evolution((text,), (text,))


def _by_migration(
    stored: StateSchema, wanted: StateSchema, migration: Migration | None
) -> list[str]:
    if migration is None:
        return []
    renamed = [f"renamed from {stored.name!r}"] if stored.name != wanted.name else []
    values = ["values by its migration"] if migration.value is not None else []
    keys = ["keys by its migration"] if migration.key is not None else []
    return renamed + values + keys


def _ttl(stored: StateSchema, wanted: StateSchema) -> list[str]:
    if stored.ttl == wanted.ttl:
        return []
    return [f"ttl changed from {stored.ttl or 'none'} to {wanted.ttl or 'none'}"]
