"""What a start of a query does at its location before Spark begins, without a session of Spark."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pyspark_ckpt.restore.location.decision import (
    Continue,
    Decision,
    Finish,
    Fresh,
    Half,
    Refuse,
    decide,
)
from pyspark_ckpt.restore.location.facts import Draining, Facts, Swapping, Wanted, inspect
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.restore.location.swap import finish_restart
from pyspark_ckpt.restore.plan import RestoreRequest

NO_SPARK: Any = None
"""Stands for the session: nothing here has state that only Spark can read."""


def not_read(facts: Facts, *names: str) -> bool:
    """Return whether some facts are as if nobody had looked."""
    return all(getattr(facts, name) == getattr(Facts(""), name) for name in names)


OF_CONTENT = ("output", "bound", "bound_before", "stored_policy", "began_with_initial_state")
OF_PLAN = ("plan", "is_plan_inside")
OF_STATES = ("states", "are_states_known")


def is_possible(facts: Facts) -> bool:
    """Return whether :func:`inspect` can find these facts together."""
    if facts.swapping is not Swapping.NONE or facts.damage is not None:
        beside = {"location", "swapping", "draining", "content", "damage"}
        return not_read(facts, *({each.name for each in fields(Facts)} - beside))
    is_fresh, is_restored = facts.begun is None, facts.plan is not None
    has_id = facts.query_id is not None
    rules = [
        # A half seeded location has no epochs, and one with epochs has the id of its query.
        not (facts.is_half_seeded and facts.has_epochs),
        has_id or not facts.has_epochs,
        # The place is looked at if there is an id, and nothing else if another location owns it.
        has_id or not_read(facts, "place", "disowned", "newest"),
        not has_id or (facts.place is None) == (facts.disowned is not None),
        facts.disowned is None or not_read(facts, "newest", *OF_CONTENT, *OF_PLAN, *OF_STATES),
        # A plan is made if no epoch is committed, and takes the place of what the location has.
        not is_restored or facts.committed is None,
        not is_restored or not_read(facts, "bound", "bound_before", "began_with_initial_state"),
        not is_restored or not facts.plan.errors or facts.output is None,
        is_restored or not_read(facts, *OF_PLAN),
        is_restored or not facts.is_half_seeded or not_read(facts, *OF_CONTENT),
        is_restored or not is_fresh or not_read(facts, *OF_CONTENT[1:]),
        # Only the epoch that every operator begins with has an initial state.
        facts.committed is None or not facts.began_with_initial_state,
        facts.committed is not None or not_read(facts, *OF_STATES),
    ]
    return all(rules)


def looked_at(start: StartLocation, restore: RestoreRequest | None = None) -> Decision:
    """Return what a start decides, which then relies on what it has found."""
    wanted = Wanted(
        start.operators,
        start.place,
        has_store_elsewhere=start.has_store_elsewhere,
        restore=restore,
    )
    facts = inspect(start.storage, wanted, Draining.NONE, NO_SPARK)
    assert is_possible(facts), facts
    decision = decide(facts, wanted)
    if not isinstance(decision, Refuse):
        start.rely_on(facts, records_place=decision.records_place)
    return decision


def decided(start: StartLocation, restore: RestoreRequest | None = None) -> Fresh | Continue:
    """Look at a location until nothing is half done there; raise what refuses the start."""
    while True:
        decision = looked_at(start, restore)
        if isinstance(decision, Refuse):
            raise decision.error
        if not isinstance(decision, Finish):
            return decision
        assert decision.what is Half.RESTART
        finish_restart(start.storage)


def filled(start: StartLocation, restore: RestoreRequest | None = None) -> str:
    """Do all that a start does before Spark's query begins; return the query's id."""
    decision = decided(start, restore)
    start.claim()
    start.clear_leftovers()
    if isinstance(decision, Fresh) and decision.plan is not None:
        start.restore(NO_SPARK, decision.plan, None)
    query_id = start.make_query_id()
    start.check_unchanged(query_id)
    return query_id
