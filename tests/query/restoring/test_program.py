"""A program that builds nothing is refused wherever one is given, and stands for no other one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_ckpt as ckpt
from tests.query.harness import INTERVAL, Job
from tests.query.restoring.numbered_job import (
    NUMBERED,
    PARTITIONS,
    Mended,
    Numbered,
    check_numbered,
    epoch_of,
    writer_of,
)
from tests.query.session_conf import session_conf


@pytest.fixture
def job(job: Job) -> Job:
    return job.but(processor=Numbered, output=NUMBERED).using({INTERVAL: "1h"})


class Empty:
    """An object that can be called, and is false."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build

    def __call__(self) -> Any:
        return self.build()

    def __len__(self) -> int:
        return 0


class AsyncCall:
    async def __call__(self) -> None:
        """Build nothing before it is awaited."""


async def build_later() -> None:
    """Build nothing before it is awaited."""


async def build_many() -> AsyncIterator[int]:
    yield 1


def build_of(spark: SparkSession, name: str = "") -> None:
    """Build nothing, and want an argument."""


def bad_programs(job: Job) -> dict[str, tuple[Any, str]]:
    """Return what is not a program, each with what the error says of it."""

    def forgets() -> None:
        job.df()

    def read() -> DataFrame:
        return job.spark.range(3)

    keyed = ckpt.key_by(job.stream(), "k")
    return {
        "None": (None, "got None for a program.*does not return it gives None"),
        "a number": (3, "got int for a program"),
        "a text": ("df", "got str for a program"),
        "a class": (Numbered, "got the class Numbered for a program"),
        "a writer": (ckpt.write_stream(job.df()), "got CheckpointedStreamWriter for a program"),
        "a batch DataFrame": (job.spark.range(3), "got a DataFrame that is not a stream"),
        "a function that forgets": (forgets, r"forgets\(\) .*test_program.*returned None: end it"),
        "of a partial": (partial(forgets), r"forgets\(\) .*returned None"),
        "a false object": (Empty(forgets), r"Empty\(\) returned None"),
        "of a batch DataFrame": (read, "returned a DataFrame that is not a stream"),
        "of a keyed stream": (lambda: keyed, "returned KeyedStream: return the streaming Data"),
        "of a writer": (
            lambda: ckpt.write_stream(job.df()),
            "returned CheckpointedStreamWriter: return the streaming DataFrame itself",
        ),
        "of a function": (lambda: job.df, "returned method: return the streaming DataFrame"),
        "an async function": (build_later, r"got the async function build_later\(\)"),
        "a partial of it": (partial(build_later), r"the async function build_later\(\)"),
        "an async object": (AsyncCall(), r"the async function AsyncCall\(\)"),
        "an async generator": (build_many, r"the async function build_many\(\)"),
        "of an async function": (lambda: build_later(), "returned coroutine: return the stream"),
        "a function of arguments": (build_of, r"build_of\(\) .*, which requires spark, and"),
    }


@pytest.mark.filterwarnings("error")
def test_write_stream_takes_only_a_program(job: Job) -> None:
    for program, text in bad_programs(job).values():
        with pytest.raises(ckpt.errors.ConfigurationError, match=f"(?s)write_stream.*{text}"):
            ckpt.write_stream(program)
    with pytest.raises(ckpt.errors.PlanError, match="no operator of this library"):
        ckpt.write_stream(job.stream).start("out", "parquet", checkpointLocation="loc")


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_running_query_is_left_alone(job: Job) -> None:
    """Whoever gives it a program that builds nothing: ``restartWith``, ``shadow``, its own."""
    builds: list[Callable[[], Any]] = [job.df]
    with session_conf(job.spark, {PARTITIONS: "2"}):
        of_the_session = job.df()
        query = writer_of(job, Empty(lambda: builds[0]())).start()
        epoch_of(job)
        query.processAllAvailable()
        query.rescale(3)
        run = query.runId
        for program, text in bad_programs(job).values():
            with pytest.raises(ckpt.errors.ConfigurationError, match=f"(?s){text}"):
                query.restartWith(program)
        bad = bad_programs(job)
        for program, text in (bad["None"], bad["a class"], bad["a function that forgets"]):
            with pytest.raises(ckpt.errors.ConfigurationError, match=f"(?s)shadow.*{text}"):
                ckpt.shadow(query, program)
        for builds[0], _ in (bad["a function that forgets"], bad["of a writer"]):
            with pytest.raises(ckpt.errors.ConfigurationError, match=r"Empty\(\) returned "):
                query.rescale(4)
        with pytest.raises(ckpt.errors.PlanError, match="no operator of this library"):
            query.restartWith(job.stream)
        builds[0] = lambda: of_the_session
        with pytest.raises(
            ckpt.errors.ConfigurationError, match="built for 2 subtasks, and 4 are wanted"
        ):
            query.rescale(4)
        with pytest.raises(
            ckpt.errors.ConfigurationError, match="built for 2 subtasks, and 3 are wanted"
        ):
            query.restartWith(lambda: of_the_session)
        assert query.isActive
        assert query.runId == run
        mended = Empty(job.but(processor=Mended).df)  # a program, though it is false
        done = query.restartWith(mended)
        assert (done.parallelism_before, done.parallelism) == (3, 3)
        epoch_of(job)
        query.processAllAvailable()
        query.stop()
    check_numbered(job, 2)
    assert sorted({what for _, n, what in job.result() if n == 2}) == ["b"]


def test_a_location_of_another_parallelism(job: Job) -> None:
    """A function that returns the same DataFrame every time cannot continue it."""
    with session_conf(job.spark, {PARTITIONS: "2"}):
        epoch_of(job)
        job.run()
        with session_conf(job.spark, {PARTITIONS: "3"}):
            df = job.df()
            with pytest.raises(
                ckpt.errors.ConfigurationError, match="built for 3 subtasks, and 2 are"
            ):
                writer_of(job, lambda: df).start()
            writer_of(job).trigger(availableNow=True).start().awaitTermination()
    check_numbered(job, 1)


@pytest.mark.parametrize("given", [None, 3, "df", print])
def test_where_a_frame_is_wanted(given: Any, spark: SparkSession, job: Job) -> None:
    """What is given instead is named, not one of its attributes that is missing."""
    name = {None: "None", 3: "int", "df": "str"}.get(given, "builtin_function_or_method")
    calls: dict[str, Callable[[], Any]] = {
        "key_by": lambda: ckpt.key_by(given, "k"),
        "connectBroadcast": lambda: ckpt.key_by(job.stream(), "k").connectBroadcast(given),
        "erase_keys": lambda: ckpt.location("nowhere").erase_keys({"op": given}),
    }
    if given is not None:  # which stands for no query there
        calls["edit_state"] = lambda: ckpt.edit_state(query=given)
        calls["import_checkpoint"] = lambda: ckpt.location("nowhere").import_checkpoint(query=given)
    for call in calls.values():
        with pytest.raises(ckpt.errors.PlanError, match=f" got {name} for .*: give a DataFrame"):
            call()
