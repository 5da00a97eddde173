"""The table of decisions of a rollback: every combination of facts has one, and none is made up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, RestoreError
from pyspark_ckpt.restarting.rollback_decision import (
    FinishSwap,
    GoBack,
    RefuseRollback,
    RollbackFacts,
    RollbackRequest,
    decide_rollback,
)
from pyspark_ckpt.restarting.stopped import Runs, StoppedFacts
from pyspark_ckpt.restore.location.swap import Swap
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.place import CheckpointsPlace

AT, QUERY = "/location", "3f2a1000-0000-4000-8000-000000000000"
BEGUN = Swap(to="chk-1", kept="_before", staged="_new", outgoing=(), incoming=())
PLACE = CheckpointsPlace.of_setting(LocalStorage(Path(AT)), None)
MISPLACED = RestoreError("its checkpoints are gone. Mount it or put it back")
UNUSABLE = CheckpointNotFoundError("give the name of a retained one")
DISOWNED = RestoreError("it is a copy: restoreFrom")
MISSING = RestoreError("input is gone: allowMissingInput")
WAY_OUT = re.compile(
    r"stop it|stop the query|force=True|put it back|retained|restoreFrom|allowMissingInput|"
    r"nothing to roll back"
)

OF_QUERY = ("runs", "found_id")
OF_PLACE = ("place", "misplaced", "is_of_query", "is_draining")
OF_TARGET = ("is_return", "has_run", "unusable", "disowned", "missing_input")
STOPPED = {
    "begun": (None, BEGUN),
    "is_untouched": (False, True),
    "query_id": (None, QUERY),
    "is_half_seeded": (False, True),
    "runs": tuple(Runs),
    "place": (None, PLACE),
    "misplaced": (None, MISPLACED),
    "is_of_query": (True, False),
    "is_draining": (False, True),
}
TARGET = {
    "is_return": (False, True),
    "has_run": (True, False),
    "unusable": (None, UNUSABLE),
    "disowned": (None, DISOWNED),
    "missing_input": (None, MISSING),
}


def not_read(facts: StoppedFacts, *names: str) -> bool:
    return all(getattr(facts, name) == getattr(StoppedFacts(""), name) for name in names)


def can_be_stopped(facts: StoppedFacts) -> bool:
    """Return whether facts of a location can be found together."""
    has_query = facts.query_id is not None and not facts.is_half_seeded
    is_moving = facts.begun is not None and not facts.is_untouched
    rules = [
        facts.begun is not None or not facts.is_untouched,
        not is_moving or not_read(facts, "query_id", "is_half_seeded", *OF_QUERY, *OF_PLACE),
        has_query or not_read(facts, *OF_QUERY, *OF_PLACE),
        not has_query or (facts.place is None) == (facts.misplaced is not None),
        facts.misplaced is None or not_read(facts, *OF_PLACE[2:]),
    ]
    return all(rules)


def is_possible(facts: RollbackFacts) -> bool:
    """Return whether the facts of a rollback can be found together."""
    stopped = facts.stopped
    is_looked_at = stopped.place is not None and stopped.begun is None
    rules = [
        can_be_stopped(stopped),
        is_looked_at or facts == RollbackFacts(stopped),
        not facts.is_return or (facts.has_run and facts.unusable is None),
        facts.unusable is None or (facts.disowned is None and facts.missing_input is None),
        facts.disowned is None or facts.missing_input is None,
    ]
    return all(rules)


def table() -> Iterator[RollbackFacts]:
    for values in product(*STOPPED.values()):
        stopped = replace(StoppedFacts(AT), **dict(zip(STOPPED, values, strict=True)))
        if not can_be_stopped(stopped):
            continue
        for more in product(*TARGET.values()):
            facts = replace(RollbackFacts(stopped), **dict(zip(TARGET, more, strict=True)))
            if is_possible(facts):
                yield facts


def speaks_against(facts: RollbackFacts, *, force: bool) -> bool:
    stopped = facts.stopped
    if stopped.begun is not None and not stopped.is_untouched:
        return False
    is_doubtful = not stopped.is_of_query or stopped.is_draining
    return (
        stopped.query_id is None
        or stopped.is_half_seeded
        or stopped.runs is not Runs.NOWHERE
        or stopped.misplaced is not None
        or not facts.has_run
        or any((facts.unusable, facts.disowned, facts.missing_input))
        or (is_doubtful and not force)
    )


@pytest.mark.parametrize("force", [False, True])
def test_every_combination_of_facts_has_a_decision(force: bool) -> None:
    request, count = RollbackRequest("chk-1", force=force), 0
    kinds: set[type] = set()
    texts: set[str] = set()
    for facts in table():
        count += 1
        decision = decide_rollback(facts, request)
        kinds.add(type(decision))
        assert isinstance(decision, RefuseRollback) == speaks_against(facts, force=force), facts
        if isinstance(decision, RefuseRollback):
            assert isinstance(decision.error, CkptError)
            texts.add(str(decision.error))
            continue
        assert isinstance(decision, FinishSwap) == (facts.stopped.begun is not None), facts
        if isinstance(decision, FinishSwap):
            waits = facts.stopped.is_untouched and not force
            assert (decision.silent_at is not None) == waits, facts
        else:
            assert decision == GoBack(QUERY, None, PLACE, None), facts
    assert count > 150
    assert kinds == {FinishSwap, GoBack, RefuseRollback}
    assert not [text for text in texts if not WAY_OUT.search(text)]
