"""The only operator of a query needs no uid; with a second one, both need a uid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from tests.query.harness import OFTEN, Job, newest_checkpoint, refused
from tests.query.model import Count, in_order
from tests.query.stored import metadata_of

OUTPUT = "k string, n long"


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Count, output=OUTPUT, uid=None).using(OFTEN)


def two(first: str | None, second: str | None) -> Callable[[Job], DataFrame]:
    """Return a query whose second operator counts what the first one emits."""

    def plan(job: Job) -> DataFrame:
        counted = job.but(uid=first).process(ckpt.key_by(job.stream(), "k"))
        return job.but(uid=second).process(ckpt.key_by(counted, "k"))

    return plan


@pytest.mark.soak
def test_restarted_restored_and_named_later(job: Job) -> None:
    job.feed.add([("a", 1), ("b", 1)])
    job.run()
    job.feed.add([("a", 1)])
    path = newest_checkpoint(job.run())  # at the same location
    assert [operator.uid for operator in metadata_of(path).operators] == ["operator"]
    job.feed.add([("a", 1)])
    for number, uid in enumerate((None, "operator")):
        fork = job.but(location=f"fork-{number}", out=f"out-{number}", uid=uid)
        fork.run(path)
        assert fork.result() == [("a", 3)]
    job.but(uid="operator").run()
    assert job.result() == in_order([("a", 1), ("b", 1), ("a", 2), ("a", 3)])


@pytest.mark.parametrize(("first", "second"), [(None, None), (None, "new"), ("old", None)])
def test_several_operators_need_names(job: Job, first: str | None, second: str | None) -> None:
    job = job.but(plan=two(first, second))
    with refused(
        ckpt.errors.PlanError, "2 operators", "Count", "uid='operator'", unchanged=job.base
    ):
        job.start()


@pytest.mark.soak
def test_the_message_of_a_second_operator_names_the_first_ones_state(job: Job) -> None:
    job.feed.add([("a", 1), ("b", 1)])
    path = newest_checkpoint(job.run())
    job.feed.add([("a", 1)])
    fork = job.but(plan=two("operator", "new"), location="fork", out="fork-out")
    fork.run(path)
    assert fork.result() == [("a", 1)]
    states = metadata_of(newest_checkpoint(fork.run())).operators
    assert {operator.uid for operator in states} == {"operator", "new"}
    job.feed.add([("a", 1)])
    fork.run()
    assert fork.result() == [("a", 1), ("a", 2)]
    plan = ckpt.location(newest_checkpoint(fork.run())).plan(job.writer())
    assert str(plan).splitlines()[0].endswith("refused: 2 rows")


def test_a_class_in_place_of_an_instance(job: Job) -> None:
    with refused(ckpt.errors.PlanError, "the class Count was given", "Count()", unchanged=job.base):
        ckpt.key_by(job.stream(), "k").transformWithState(Count, OUTPUT, "Append", "None")
    with refused(
        ckpt.errors.PlanError, "the class Batches was given", "Batches()", unchanged=job.base
    ):
        ckpt.key_by(job.stream(), "k").transformWithStateInBatches(
            Batches, OUTPUT, "Append", "None"
        )


class Batches(Count, ckpt.BatchProcessor):
    def handleInputBatch(self, keys, rows, timerValues):  # type: ignore[no-untyped-def]
        return ()
