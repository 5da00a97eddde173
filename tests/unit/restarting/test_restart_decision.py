"""The table of decisions of a restart in place: every combination of facts has one."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.restarting.restart_decision import (
    ChangeState,
    RefuseRestart,
    RestartFacts,
    StartAgain,
    decide_change,
    decide_restart,
)
from pyspark_ckpt.restore.planned import CopiedOperator
from pyspark_ckpt.spark.log import Sources

AT, QUERY = "/location", "q"
UNFIT = IncompatibleStateError("the state does not fit: restore it with migrations")
WAY_OUT = re.compile(
    r"checkpointLocation'|start it again|restart it after|keeps the checkpointLocation|"
    r"stopWithSavepoint|migrations"
)


def plan_with(
    *,
    is_unfit: bool = False,
    changes: bool = False,
    has_spark_operators: bool = False,
    reads_elsewhere: bool = False,
) -> Any:
    """Return a plan as far as a decision looks at it."""
    wanted = OperatorDescriptor(
        uid="count", parallelism=3 if changes else 2, max_parallelism=8, key_schema="{}"
    )
    stored = SimpleNamespace(uid="count", operator_id=0, parallelism=2, time_mode=wanted.time_mode)
    copied = CopiedOperator(uid="count", operator_id=0, wanted=wanted, handles=())
    metadata = SimpleNamespace(operators=(stored,), source_names=(), source_ids=(0, 1))
    return SimpleNamespace(
        errors=(UNFIT,) if is_unfit else (),
        operators=(copied,),
        spark_operators=SimpleNamespace(operators=("dedupe",) if has_spark_operators else ()),
        source=SimpleNamespace(metadata=metadata, offsets=("{}", "{}")),
        sources=SimpleNamespace(sources=Sources((1, 0) if reads_elsewhere else (0, 1))),
    )


OF_PLAN = ("is_unfit", "changes", "has_spark_operators", "reads_elsewhere")
PLANS = [dict(zip(OF_PLAN, values, strict=True)) for values in product((False, True), repeat=4)]


@pytest.mark.parametrize("given", PLANS)
def test_a_plan_is_refused_if_anything_speaks_against_it(given: dict[str, bool]) -> None:
    plan = plan_with(**given)
    decision = decide_change(plan)
    is_refused = (
        given["is_unfit"]
        or given["reads_elsewhere"]
        or (given["changes"] and given["has_spark_operators"])
    )
    if is_refused:
        assert isinstance(decision, RefuseRestart)
        assert WAY_OUT.search(str(decision.error)), decision.error
        assert not given["is_unfit"] or decision.error is UNFIT
    else:
        assert decision == (ChangeState(plan) if given["changes"] else StartAgain())


def test_each_combination_of_facts_has_one_decision() -> None:
    plans = [None, plan_with(), plan_with(changes=True), plan_with(is_unfit=True)]
    values = product((False, True), (True, False), (None, 7), (None, AT, "/other"), plans)
    for is_temporary, runs, committed, wanted, plan in values:
        facts = RestartFacts(QUERY, AT, is_temporary, runs, committed, wanted, plan)
        decision = decide_restart(facts)
        speaks = is_temporary or not runs or committed is None or wanted == "/other"
        if speaks:
            assert isinstance(decision, RefuseRestart), facts
            assert WAY_OUT.search(str(decision.error)), decision.error
        else:
            assert decision == (StartAgain() if plan is None else decide_change(plan)), facts


@pytest.mark.parametrize(
    "change", [{"parallelism": 3}, {"time_mode": "EventTime"}, {"operator_id": 1}]
)
def test_state_stays_only_if_the_operator_is_what_it_was(change: dict[str, Any]) -> None:
    plan = plan_with()
    for name, value in change.items():
        setattr(plan.source.metadata.operators[0], name, value)
    assert isinstance(decide_change(plan), ChangeState)
