"""Scenario 50: random histories of whole queries against a model, and one that failed once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.faulty_storage import FAULTS
from tests.faults.keyed_query import KEYS, RETAINED, UIDS
from tests.faults.query_machine import OperatorWrites, QueryMachine
from tests.unit.operator.materialized_subtask import ALWAYS


def _run(examples: int, steps: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    run_state_machine_as_test(
        QueryMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, phases=phases
        ),
    )


def test_a_driver_that_died_behind_a_checkpoint_has_left_one_more() -> None:
    """At the operations around that: cleaning keeps that one, the next checkpoint subsumes it."""
    left = set()
    for dies_at in range(16, 25):
        machine = QueryMachine()
        machine.begin(parallelism=1, backend="heap")
        _write(machine, epochs=RETAINED, followed="each")
        _write(machine, epochs=1, followed="none")
        machine.crash(0, copies_too=False, writes={uid: {} for uid in UIDS}, dies_at=dies_at)
        (query,) = machine.queries
        query.take()
        left.add(len(query.checkpoints()))
        machine.clean_up(0, dies_at=None)
        _write(machine, epochs=1, followed="each")
        machine.the_newest_checkpoints_restore()
        machine.teardown()
    assert left == {RETAINED, RETAINED + 1}


@pytest.mark.parametrize("dies_at", range(8, 30, 3))
def test_nothing_is_cleaned_while_a_driver_that_died_may_complete_a_checkpoint(
    dies_at: int,
) -> None:
    """The next checkpoint of the new driver ends that, and then exactly the garbage goes."""
    machine = QueryMachine()
    machine.begin(parallelism=1, backend="heap")
    _write(machine, epochs=2, followed="each")
    _write(machine, epochs=4, followed="none")
    machine.crash(0, copies_too=False, writes={uid: {} for uid in UIDS}, dies_at=dies_at)
    machine.clean_up(0, dies_at=None)
    machine.the_newest_checkpoints_restore()
    _write(machine, epochs=1, followed="each")
    machine.clean_up(0, dies_at=None)
    machine.the_newest_checkpoints_restore()
    machine.teardown()


def _write(machine: QueryMachine, epochs: int, followed: str) -> None:
    """Run epochs, each with a checkpoint or none."""
    writes: dict[str, OperatorWrites] = {uid: {KEYS[0]: b"v"} for uid in UIDS}
    machine.epochs(
        0, [writes] * epochs, ALWAYS, twin=None, from_loser=False, lasting=False,
        fails_at=None, fault=FAULTS[0], uploaded=1, followed=followed,
    )  # fmt: skip


def test_queries_against_a_model() -> None:
    """Scenario 50: everything that may happen to queries, in any order.

    A failing history is printed as it was found: shrinking takes longer than a test may.
    """
    _run(12, 25, [Phase.explicit, Phase.reuse, Phase.generate])


@pytest.mark.soak
def test_queries_against_a_model_for_long() -> None:
    """Scenario 50: the same, longer."""
    _run(600, 50)
