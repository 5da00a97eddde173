"""The verdict on one state, and when a migration is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.verdict import (
    StateOutcome,
    StateSchema,
    judge_state,
    schema_text,
    state_text,
    used_migration,
)


def struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def same(row: Any) -> tuple[Any, ...]:
    return tuple(row)


INT, LONG, TEXT = struct(n=T.IntegerType()), struct(n=T.LongType()), struct(s=T.StringType())
VALUE = StateSchema("v", "value", INT)
MAP = StateSchema("m", "map", INT, TEXT)
KINDS = ["value", "list", "map", "reducing", "aggregating", "operator-list", "broadcast"]


def of_kind(kind: str) -> StateSchema:
    return replace(MAP if kind in ("map", "broadcast") else VALUE, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_restored_and_evolved(kind: str) -> None:
    stored = of_kind(kind)
    assert judge_state(stored, stored).verdict is StateOutcome.RESTORED
    assert judge_state(stored, stored).what_to_do == "nothing"
    evolved = judge_state(stored, replace(stored, value_schema=LONG))
    assert evolved.verdict is StateOutcome.EVOLVED
    assert evolved.what_to_do == "nothing: field 'n' widened from int to bigint"
    assert evolved.changes == ("field 'n' widened from int to bigint",)
    assert evolved.refusal is None


def test_fields_that_may_be_renamed_are_not_nothing_to_do() -> None:
    """A removed field and an added one are named together, also below; two and two are not."""

    def told(stored: str, wanted: str) -> str:
        schemas = [of_longs(each) for each in (stored, wanted)]
        before, now = (replace(VALUE, value_schema=schema) for schema in schemas)
        verdict = judge_state(before, now)
        assert verdict.verdict is StateOutcome.EVOLVED
        assert judge_state(before, now, Migration(value=same)).advice == ()
        return verdict.what_to_do

    renamed = "If 'fullName' is 'name' renamed, stop and give a Migration with value="
    lost = "field 'name' removed, stored values drop it"
    added = "field 'fullName' added, null in stored values"
    assert told("n,name", "n,fullName") == f"{lost}; {added}. {renamed}"
    case = "'name' and 'NAME' differ in case, so they are two fields. If 'NAME' is 'name' renamed"
    assert case in told("n,name,x", "NAME,n,y,z")
    assert told("n,a,b", "n,c,d").startswith("nothing: field 'a' removed")
    assert told("n,a", "n").startswith("nothing: field 'a' removed")
    assert told("n,a", "n,a,b").startswith("nothing: field 'b' added")
    below = [T.StructType([T.StructField("s", of_longs(each))]) for each in ("n,a", "n,b")]
    before, now = (replace(VALUE, value_schema=schema) for schema in below)
    assert "If 's.b' is 's.a' renamed" in judge_state(before, now).why


def of_longs(names: str) -> T.StructType:
    return T.StructType([T.StructField(name, T.LongType()) for name in names.split(",")])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("migration", [None, Migration(value=same), Migration(renamed_from="old")])
def test_another_kind_is_refused_with_and_without_a_migration(
    kind: str, other: str, migration: Migration | None
) -> None:
    verdict = judge_state(of_kind(kind), of_kind(other), migration)
    assert (verdict.verdict is StateOutcome.REFUSED) is (kind != other)
    if kind != other:
        assert f"from {kind} to {other}, which no migration can do" in verdict.what_to_do


def test_what_does_not_fit_is_refused_with_the_reasons_and_the_ways_out() -> None:
    verdict = judge_state(replace(VALUE, value_schema=LONG), VALUE)
    assert verdict.verdict is StateOutcome.REFUSED
    assert (verdict.stored, verdict.wanted) == ("value of (n bigint)", "value of (n int)")
    assert verdict.what_to_do == (
        "field 'n' narrowed from bigint to int: not without a migration. Give a Migration with "
        "value= for state 'v', give it back its stored schema, or use a new name"
    )


OTHER_KEYS = replace(MAP, map_key_schema=INT)
OTHER_BOTH = replace(OTHER_KEYS, value_schema=struct(n=T.StringType()))
WIDER_KEYS = replace(MAP, map_key_schema=LONG)


@pytest.mark.parametrize(
    ("stored", "wanted", "migration", "needed"),
    [
        (MAP, OTHER_KEYS, None, "key="),
        (MAP, OTHER_KEYS, Migration(value=same), "key="),
        (OTHER_KEYS, WIDER_KEYS, None, "key="),
        (MAP, OTHER_BOTH, None, "value= and key="),
        (MAP, OTHER_BOTH, Migration(value=same), "key="),
        (MAP, OTHER_BOTH, Migration(key=same), "value="),
        (MAP, replace(OTHER_BOTH, name="new"), Migration(renamed_from="m"), "value= and key="),
    ],
)
def test_keys_of_a_map_need_a_migration_of_keys_and_values_one_of_values(
    stored: StateSchema, wanted: StateSchema, migration: Migration | None, needed: str
) -> None:
    verdict = judge_state(stored, wanted, migration)
    assert verdict.verdict is StateOutcome.REFUSED
    assert f"Give a Migration with {needed} for state {wanted.name!r}" in verdict.what_to_do


@pytest.mark.parametrize(
    ("stored", "wanted", "migration", "how"),
    [
        (VALUE, replace(VALUE, value_schema=TEXT), Migration(value=same), "values by"),
        (VALUE, replace(VALUE, value_schema=LONG), Migration(value=same), "values by"),
        (MAP, OTHER_KEYS, Migration(key=same), "keys by"),
        (MAP, OTHER_BOTH, Migration(key=same, value=same), "values by its migration; keys by"),
        (VALUE, replace(VALUE, name="new"), Migration(renamed_from="v"), "renamed from 'v'"),
        (VALUE, replace(VALUE, name="new"), Migration(renamed_from="v", value=same),
         "renamed from 'v'; values by"),
        (VALUE, replace(VALUE, name="new", value_schema=LONG), Migration(renamed_from="v"),
         "renamed from 'v'; field 'n' widened"),
        (MAP, replace(OTHER_KEYS, value_schema=LONG), Migration(key=same),
         "keys by its migration; field 'n' widened"),
    ],
)  # fmt: skip
def test_what_a_migration_covers_is_migrated(
    stored: StateSchema, wanted: StateSchema, migration: Migration, how: str
) -> None:
    verdict = judge_state(stored, wanted, migration)
    assert verdict.verdict is StateOutcome.MIGRATED
    assert verdict.what_to_do.startswith(f"nothing: {how}")
    assert verdict.state == wanted.name
    assert used_migration(stored, wanted, migration) is migration


@pytest.mark.parametrize("migration", [Migration(value=same), Migration(renamed_from="old")])
def test_a_migration_left_in_the_code_is_not_used_again(migration: Migration) -> None:
    verdict = judge_state(VALUE, VALUE, migration)
    assert verdict.verdict is StateOutcome.RESTORED
    assert "its migration is not used" in verdict.what_to_do
    assert used_migration(VALUE, VALUE, migration) is None


def test_a_migration_that_renames_is_only_for_data_of_the_old_name() -> None:
    migration = Migration(renamed_from="old", value=same)
    wider = replace(VALUE, value_schema=LONG)
    assert used_migration(VALUE, wider, migration) is None
    assert judge_state(VALUE, wider, migration).verdict is StateOutcome.EVOLVED
    assert judge_state(wider, VALUE, migration).verdict is StateOutcome.REFUSED
    assert used_migration(replace(VALUE, name="old"), wider, migration) is migration


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (None, "1 h", "from none to 1 h"),
        ("1 h", None, "from 1 h to none"),
        ("1 h", "2 h", "from 1 h to 2 h"),
    ],
)
def test_ttl_may_change(before: str | None, after: str | None, change: str) -> None:
    verdict = judge_state(replace(VALUE, ttl=before), replace(VALUE, ttl=after))
    assert verdict.verdict is StateOutcome.EVOLVED
    assert verdict.what_to_do == f"nothing: ttl changed {change}"
    assert verdict.wanted == f"value of (n int){'' if after is None else f', ttl {after}'}"


def test_ttl_alone_is_no_use_for_a_migration() -> None:
    wanted = replace(VALUE, ttl="1 h")
    assert used_migration(VALUE, wanted, Migration(value=same)) is None
    assert judge_state(VALUE, wanted, Migration(value=same)).verdict is StateOutcome.EVOLVED


def test_texts_are_what_a_user_would_write() -> None:
    schema = T.StructType(
        [
            T.StructField("a", T.LongType(), nullable=False),
            T.StructField("b", T.ArrayType(T.StringType())),
        ]
    )
    assert schema_text(schema) == "(a bigint not null, b array<string>)"
    assert schema_text(struct()) == "()"
    map_state = StateSchema("m", "map", INT, TEXT, "5 min")
    assert state_text(map_state) == "map of (s string) to (n int), ttl 5 min"


def test_a_field_that_comes_back_is_told_with_what_entries_still_have() -> None:
    with_x, without = (of_longs(each) for each in ("n,x", "n"))
    stored = replace(VALUE, value_schema=without, earlier=(with_x,))
    again = judge_state(stored, replace(VALUE, value_schema=with_x))
    assert again.why == (
        "field 'x' added again, as it is stored in values that were not written without it, "
        "null in others"
    )
    texts = T.StructType([*without.fields, T.StructField("x", T.StringType())])
    as_text = judge_state(stored, replace(VALUE, value_schema=texts))
    assert as_text.verdict is StateOutcome.EVOLVED
    assert "another type, null in stored values; those that were not written" in as_text.why
    assert "still have it as bigint" in as_text.why
    below = [T.StructType([T.StructField("s", each)]) for each in (with_x, without)]
    nested = replace(VALUE, value_schema=below[1], earlier=(below[0],))
    assert (
        "field 's.x' added again" in judge_state(nested, replace(nested, value_schema=below[0])).why
    )
