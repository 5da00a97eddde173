"""The table of decisions of a start: every combination of facts has one, and none is a dead end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.errors import CkptError, CorruptFileError, IncompatibleStateError, RestoreError
from pyspark_ckpt.formats.location_files import Writer
from pyspark_ckpt.restore.location.decision import (
    Continue,
    Decision,
    Finish,
    Fresh,
    Half,
    Refuse,
    decide,
    needs_states,
)
from pyspark_ckpt.restore.location.facts import Draining, Facts, Swapping, Wanted
from pyspark_ckpt.restore.location.sink_path import Continued, Output, PathFacts
from pyspark_ckpt.restore.plan import RestoreRequest, plan_of_request
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores import place as places
from pyspark_ckpt.stores.place import CheckpointsPlace, Directory, NewestCheckpoint
from tests.faults.epochs import COUNT, OWN_OPERATORS, RARE, Epochs
from tests.faults.starts import is_possible

QUERY, OTHER = "a query", "another query"
AT = "/location"

EPOCHS = {"none": (None, None), "begun": (0, None), "committed": (5, 5), "both": (6, 5)}
WAY_OUT = re.compile(
    r"rollback|restoreFrom|fresh checkpointLocation|new path|build the query again|"
    r"before building the query|build the query with|allowNonRestoredState|put it back",
    re.IGNORECASE,
)
"""What a user can do; each of these ways is taken by a test of its own with real queries."""


@dataclass(frozen=True)
class Choice:
    """A value of a fact, and whether it keeps a query from starting."""

    value: Any
    refuses: bool = False


def directory(*, has_content: bool = True) -> Directory:
    return Directory("/d/q", "with the setting", True, has_content, has_content)


RECORDED = directory()
OWN = places.Facts(AT, True, requested=RECORDED, recorded=RECORDED, is_same=True)
NEW = places.Facts(AT, False, requested=directory(has_content=False))
GONE = places.Facts(
    AT, True, directory(has_content=False), recorded=directory(has_content=False), missing=("f",)
)
TAKEN = Writer(query_id=OTHER, location="/elsewhere", path="/out", after=-1)
OUTPUT = Output("/out", "/out", oldest=0, newest=3, is_fresh=False, writers=(TAKEN,))
LATER = NewestCheckpoint(90, "/d/q/chk-9", "pyspark_ckpt.location('/location').rollback('chk-9')")

PLACES = (Choice(None), Choice(OWN), Choice(NEW), Choice(GONE, refuses=True))
OUTPUTS = (
    Choice(None),
    Choice(PathFacts(Output("/out", "/out"), Continued(query_id=QUERY))),
    Choice(PathFacts(OUTPUT, Continued(query_id=QUERY)), refuses=True),
)
DAMAGES = (CorruptFileError("offsets/5 is missing. Put it back"),)
OWNERS = (Choice(None), Choice(RestoreError("it is a copy; start it with restoreFrom"), True))
NEWEST = (Choice(None), Choice(LATER, refuses=True))
BOUND = (Choice((None, None)), Choice((1, 1)), Choice((4, 4), True), Choice((1, 4), True))
POLICIES = (Choice(None), Choice("min"), Choice("max", refuses=True))
STATES = (
    Choice((None, False)),
    Choice((None, True)),
    Choice((IncompatibleStateError("give it its old uid back, or use restoreFrom"), True), True),
)
INITIAL = (Choice(False), Choice(True, refuses=True))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Wanted:
    """A query whose first operator passes its watermark on; the checkpoints are elsewhere."""
    root = tmp_path_factory.mktemp("wanted")
    passing = msgspec.structs.replace(COUNT, passes_watermark=True)
    return Wanted(
        StatefulOperators((passing, RARE)),
        CheckpointsPlace.of_setting(LocalStorage(root / "location"), str(root / "checkpoints")),
        set_parallelism=1,
        parallelism_key="spark.sql.shuffle.partitions",
    )


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Choice, ...]:
    """No plan, one that can start, one that cannot, and one whose source is in the location."""
    root = tmp_path_factory.mktemp("origin")
    origin = Epochs(LocalStorage(root / "pyspark_ckpt"), root, OWN_OPERATORS)
    origin.commit()
    runner = origin.runner()
    runner.take(origin.committed_epoch, periodic=False)
    runner.close()
    request = RestoreRequest(path=str(root / "pyspark_ckpt" / "chk-1"), source_ids=(0,))
    good = plan_of_request(request, OWN_OPERATORS)
    lacks = plan_of_request(request, StatefulOperators((COUNT,)))
    assert not good.errors
    assert lacks.errors
    return (
        Choice((None, False)),
        Choice((good, False)),
        Choice((lacks, False), refuses=True),
        Choice((good, True), refuses=True),
    )


def table(plans: tuple[Choice, ...]) -> Iterator[tuple[Facts, bool]]:
    """Yield each possible combination, and whether a fact of it speaks against the start."""
    at = Facts(AT)
    for swapping, draining in product((Swapping.RESTART, Swapping.ROLLBACK), Draining):
        yield replace(at, swapping=swapping, draining=draining), swapping is Swapping.ROLLBACK
    for draining, damage in product(Draining, DAMAGES):
        yield replace(at, draining=draining, damage=damage), True
    seen_first = product(
        Draining, (False, True), (None, QUERY), EPOCHS.values(), PLACES, OWNERS, NEWEST
    )
    for draining, is_half, query_id, (begun, committed), *choices in seen_first:
        place, disowned, newest = (each.value for each in choices)
        first = Facts(
            AT,
            draining=draining,
            is_half_seeded=is_half,
            query_id=query_id,
            begun=begun,
            committed=committed,
            place=place,
            disowned=disowned,
            newest=newest,
        )
        if is_possible(first):
            refuses = any(each.refuses for each in choices)
            for facts, also_refuses in _with_content(first, plans):
                yield facts, refuses or also_refuses


def _with_content(first: Facts, plans: tuple[Choice, ...]) -> Iterator[tuple[Facts, bool]]:
    for choices in product(OUTPUTS, BOUND, POLICIES, INITIAL, plans, STATES):
        output, bound, policy, initial, plan, states = (each.value for each in choices)
        facts = replace(
            first,
            output=output,
            bound=bound[0],
            bound_before=bound[1],
            stored_policy=policy,
            began_with_initial_state=initial,
            plan=plan[0],
            is_plan_inside=plan[1],
            states=states[0],
            are_states_known=states[1],
        )
        if is_possible(facts):
            is_unfinished = facts.is_half_seeded and facts.plan is None and not facts.disowned
            yield facts, is_unfinished or any(each.refuses for each in choices)


def after(decision: Finish, facts: Facts) -> Facts:
    """Return the facts once a start has finished what was half done."""
    if decision.what is Half.RESTART:
        return replace(facts, swapping=Swapping.NONE)
    if decision.what is Half.END_OF_DRAIN:
        return replace(facts, draining=Draining.NONE)
    return replace(facts, draining=Draining.NONE, committed=facts.begun)


def test_every_combination_of_facts_has_a_decision_that_ends(
    wanted: Wanted, plans: tuple[Choice, ...]
) -> None:
    """No fact that speaks against a start is ever overlooked, and none is made up."""
    seen: dict[type[Decision], int] = {}
    texts: set[str] = set()
    count = 0
    for facts, speaks_against in table(plans):
        count += 1
        decision, steps = decide(facts, wanted), 0
        seen[type(decision)] = seen.get(type(decision), 0) + 1
        while isinstance(decision, Finish):
            facts, steps = after(decision, facts), steps + 1
            decision = decide(facts, wanted)
        assert steps <= 2, facts
        assert isinstance(decision, Refuse) == speaks_against, facts
        if isinstance(decision, Refuse):
            assert isinstance(decision.error, CkptError), facts
            texts.add(str(decision.error))
        elif isinstance(decision, Fresh):
            assert facts.committed is None, facts
            assert decision.plan is facts.plan, facts
        else:
            assert isinstance(decision, Continue), facts
            assert facts.committed is not None, facts
            assert facts.plan is None, facts
    assert count > 5_000
    assert {*seen} == {Fresh, Continue, Finish, Refuse}
    dead_ends = [text for text in texts if not WAY_OUT.search(text)]
    assert not dead_ends


def test_the_state_is_read_before_anything_runs_on_it(
    wanted: Wanted, plans: tuple[Choice, ...]
) -> None:
    for facts, _ in table(plans):
        decision = decide(facts, wanted)
        runs = isinstance(decision, Continue) or (
            isinstance(decision, Finish) and decision.what is Half.DRAIN
        )
        is_open = runs and facts.committed is not None and not facts.are_states_known
        assert needs_states(decision, facts) == is_open, facts


def test_a_place_that_is_not_recorded_is_recorded(
    wanted: Wanted, plans: tuple[Choice, ...]
) -> None:
    for facts, _ in table(plans):
        decision = decide(facts, wanted)
        if isinstance(decision, Fresh | Continue):
            assert decision.records_place == (facts.place is not OWN), facts
