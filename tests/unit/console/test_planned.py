"""How a page says what a restore would do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.console.data.planned import plan_rows, plan_summary
from pyspark_ckpt.operator.schema.verdict import StateSchema, judge_state
from pyspark_ckpt.restore.planned import StateOutcome, planned_state

ONE = StateSchema("s", "value", T.StructType().add("a", "long"))
TWO = StateSchema("s", "value", T.StructType().add("a", "long").add("b", "long"))


def made(*outcomes: tuple[Any, ...]) -> Any:
    states = [planned_state("op", f"s{n}", *each) for n, each in enumerate(outcomes)]
    return SimpleNamespace(states=tuple(states))


def test_a_plan_is_summed_up_in_one_line() -> None:
    rows = plan_rows(
        made((StateOutcome.RESTORED, ""), (StateOutcome.MIGRATED, ""), (StateOutcome.KEPT, ""))
    )
    assert plan_summary(rows) == "0 refused, 0 dropped, 1 migrated, 1 kept but not in the program"
    assert [row.outcome for row in rows] == ["restored", "migrated", "kept, not in the program"]
    assert not any(row.is_loss for row in rows)


@pytest.mark.parametrize("outcome", [StateOutcome.REFUSED, StateOutcome.DROPPED])
def test_what_is_not_restored_is_a_loss(outcome: StateOutcome) -> None:
    (row,) = plan_rows(made((outcome, "")))
    assert row.is_loss
    assert f"1 {outcome.value}" in plan_summary([row])


def test_a_removed_field_is_a_loss_and_an_added_one_is_not() -> None:
    removed, added = (judge_state(*each) for each in ((TWO, ONE), (ONE, TWO)))
    assert removed.removed_fields == ("b",)
    rows = plan_rows(
        made(*((StateOutcome.MIGRATED, "", each.removed_fields) for each in (removed, added)))
    )
    assert [row.is_loss for row in rows] == [True, False]
    assert plan_summary(rows).endswith("1 with fields that are dropped")
