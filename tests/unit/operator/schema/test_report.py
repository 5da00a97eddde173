"""The report of an operator: every state has its row, and a refusal raises with all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.schema.report import (
    KEY,
    EvolutionReport,
    OperatorSchema,
    check,
    check_migrations,
    compare_operator,
)
from pyspark_ckpt.operator.schema.verdict import StateOutcome, StateSchema


def struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def same(row: Any) -> tuple[Any, ...]:
    return tuple(row)


INT, LONG, TEXT = struct(n=T.IntegerType()), struct(n=T.LongType()), struct(s=T.StringType())
USER = struct(user=T.StringType())


def value(name: str, schema: T.StructType = INT) -> StateSchema:
    return StateSchema(name, "value", schema)


def operator(*states: StateSchema, key: T.StructType = USER) -> OperatorSchema:
    return OperatorSchema(key, states)


def outcomes(report: EvolutionReport) -> dict[str, StateOutcome]:
    assert len({row.state for row in report.verdicts}) == len(report.verdicts)
    return {row.state: row.verdict for row in report.verdicts}


STORED = operator(
    value("same"), value("wider"), value("narrower", LONG), value("before"), value("left")
)
WANTED = operator(
    value("brand new"), value("after"), value("narrower"), value("wider", LONG), value("same")
)
MIGRATIONS = {
    "narrower": Migration(value=same),
    "after": Migration(renamed_from="before"),
}


def test_every_state_has_its_verdict_in_the_order_asked_for() -> None:
    report = check("count", [STORED], WANTED, MIGRATIONS)
    assert list(outcomes(report).items()) == [
        (KEY, StateOutcome.RESTORED),
        ("brand new", StateOutcome.NEW),
        ("after", StateOutcome.MIGRATED),
        ("narrower", StateOutcome.MIGRATED),
        ("wider", StateOutcome.EVOLVED),
        ("same", StateOutcome.RESTORED),
        ("left", StateOutcome.KEPT),
    ]
    assert report.refused == ()


TABLE = """
operator 'u'
state  stored               wanted               verdict   what to do
-----------------------------------------------------------------------------------------------------------
(key)  (user string)        (user string)        restored  nothing
count  value of (n int)     value of (n bigint)  evolved   nothing: field 'n' widened from int to bigint
total  value of (n bigint)  value of (n int)     refused   field 'n' narrowed from bigint to int: not
                                                           without a migration. Give a Migration with
                                                           value= for state 'total', give it back its
                                                           stored schema, or use a new name
more   -                    value of (n int)     new       nothing: it starts empty; to continue with
                                                           'left', add its ckpt.Migration(renamed_from=...)
left   value of (n int)     -                    kept      nothing: it stays stored; deleteIfExists('left')
                                                           in init removes it
"""  # noqa: E501


def test_the_report_is_an_aligned_table() -> None:
    stored = operator(value("count"), value("total", LONG), value("left"))
    wanted = operator(value("count", LONG), value("total"), value("more"))
    assert compare_operator("u", [stored], wanted, {}).render() == TABLE.strip()


def test_a_refusal_raises_with_the_report() -> None:
    stored = operator(value("a", LONG), value("b"), StateSchema("c", "list", INT))
    wanted = operator(value("a"), value("b"), value("c"))
    with pytest.raises(IncompatibleStateError) as raised:
        check("count", [stored], wanted, {})
    message = str(raised.value)
    assert message.startswith("operator 'count': what is stored of 'a', 'c' does not fit")
    report = compare_operator("count", [stored], wanted, {})
    assert [row.state for row in report.refused] == ["a", "c"]
    assert message.endswith(f"\n\n{report.render()}")


def test_nothing_stored_is_all_new() -> None:
    report = check("count", [], WANTED, MIGRATIONS)
    assert set(outcomes(report).values()) == {StateOutcome.NEW}
    assert list(outcomes(report)) == [state.name for state in WANTED.states]


def test_no_states_stored_is_all_new_too() -> None:
    report = check("count", [operator()], WANTED, MIGRATIONS)
    assert outcomes(report).pop(KEY) is StateOutcome.RESTORED
    assert {row.verdict for row in report.verdicts if row.state != KEY} == {StateOutcome.NEW}


@pytest.mark.parametrize(
    "key",
    [
        struct(name=T.StringType()),
        struct(user=T.LongType()),
        struct(user=T.VarcharType(3)),
        struct(user=T.StringType(), day=T.DateType()),
        struct(),
    ],
)
def test_another_key_is_refused(key: T.StructType) -> None:
    stored, wanted = operator(value("a")), operator(value("a"), key=key)
    assert outcomes(compare_operator("count", [stored], wanted, {})) == {
        KEY: StateOutcome.REFUSED,
        "a": StateOutcome.RESTORED,
    }
    with pytest.raises(IncompatibleStateError, match=r"operator 'count'.*'\(key\)'"):
        check("count", [stored], wanted, {})


def test_the_order_of_key_columns_counts() -> None:
    one, other = (
        struct(**dict(pairs))
        for pairs in (
            [("a", T.LongType()), ("b", T.LongType())],
            [("b", T.LongType()), ("a", T.LongType())],
        )
    )
    (row,) = compare_operator("u", [operator(key=one)], operator(key=other), {}).verdicts
    assert row.verdict is StateOutcome.REFUSED
    assert (row.stored, row.wanted) == ("(a bigint, b bigint)", "(b bigint, a bigint)")
    assert "key_by the stored columns" in row.what_to_do


def test_whether_a_key_column_may_be_null_does_not_count() -> None:
    strict = T.StructType([T.StructField("user", T.StringType(), nullable=False)])
    for stored, wanted in ((strict, USER), (USER, strict)):
        check("u", [operator(key=stored)], operator(key=wanted), {})


def test_subtasks_with_other_schemas_each_have_their_rows() -> None:
    older, newer = operator(value("a")), operator(value("a", LONG), value("b"))
    report = check("u", [older, newer], operator(value("a", LONG), value("b")), {})
    assert [(row.state, row.stored, row.verdict) for row in report.verdicts] == [
        (KEY, "(user string)", StateOutcome.RESTORED),
        ("a", "value of (n int)", StateOutcome.EVOLVED),
        ("a", "value of (n bigint)", StateOutcome.RESTORED),
        ("b", "value of (n int)", StateOutcome.RESTORED),
    ]


def test_one_subtask_that_does_not_fit_is_enough_to_refuse() -> None:
    fits, does_not = operator(value("a")), operator(value("a", LONG))
    for stored in ([fits, does_not], [does_not, fits]):
        with pytest.raises(IncompatibleStateError, match="narrowed from bigint"):
            check("u", stored, operator(value("a")), {})


def test_a_rename_that_some_subtasks_have_made_continues() -> None:
    renamed = {"new": Migration(renamed_from="old")}
    wanted = operator(value("new"))
    report = check("u", [operator(value("old")), operator(value("new"))], wanted, renamed)
    assert [row.verdict for row in report.verdicts] == [
        StateOutcome.RESTORED,
        StateOutcome.MIGRATED,
        StateOutcome.RESTORED,
    ]
    for without in (operator(), operator(value("other"))):
        for name in ("new", "old"):
            both = [without, operator(value(name))]
            assert check("u", both, wanted, renamed).refused == ()
            assert check("u", both[::-1], wanted, renamed).refused == ()


@pytest.mark.parametrize(
    ("stored", "what_to_do"),
    [
        (operator(value("old"), value("new")), "'new' and 'old', which it is renamed from, are"),
        (operator(value("odl")), "no state 'old' is stored ('odl'): correct renamed_from"),
    ],
)
def test_a_rename_that_is_ambiguous_is_refused(stored: OperatorSchema, what_to_do: str) -> None:
    migrations = {"new": Migration(renamed_from="old")}
    report = compare_operator("u", [stored], operator(value("new")), migrations)
    (refused,) = report.refused
    assert refused.state == "new"
    assert refused.what_to_do.startswith(what_to_do)
    with pytest.raises(IncompatibleStateError, match="'new'"):
        check("u", [stored], operator(value("new")), migrations)


MAP = StateSchema("m", "map", INT, TEXT)


@pytest.mark.parametrize(
    ("migrations", "message"),
    [
        ({"x": Migration(value=same)}, r"of state 'x' is for none.*\('a', 'b', 'm'\)"),
        ({"a": Migration(key=same)}, r"of state 'a' has key=, but a value state has none"),
        ({"a": Migration(renamed_from="b")}, r"'a' renames from 'b', which init asks for"),
        ({"a": Migration(renamed_from="a")}, r"'a' renames from 'a', which init asks for"),
        (
            {"a": Migration(renamed_from="z"), "b": Migration(renamed_from="z")},
            r"'b' renames from 'z', as that of 'a' does",
        ),
    ],
)
def test_a_migration_that_does_not_fit_the_processor_is_refused(
    migrations: Mapping[str, Migration], message: str
) -> None:
    wanted = operator(value("a"), value("b"), MAP)
    for refuse in (
        lambda: check_migrations("u", wanted.states, migrations),
        lambda: check("u", [], wanted, migrations),
        lambda: compare_operator("u", [wanted], wanted, migrations),
    ):
        with pytest.raises(PlanError, match=rf"operator 'u'.*{message}"):
            refuse()


@pytest.mark.parametrize("kind", ["map", "broadcast"])
def test_states_with_keys_take_a_migration_of_keys(kind: str) -> None:
    stored = replace(MAP, kind=kind)
    wanted = replace(stored, map_key_schema=LONG)
    report = check("u", [operator(stored)], operator(wanted), {"m": Migration(key=same)})
    assert outcomes(report)["m"] is StateOutcome.MIGRATED
    with pytest.raises(IncompatibleStateError, match="key="):
        check("u", [operator(stored)], operator(wanted), {})
