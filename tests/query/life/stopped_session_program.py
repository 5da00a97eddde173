"""A program whose Spark sessions end under its queries; see test_stopped_session.

``python stopped_session_program.py DIRECTORY PHASE...`` prints a line of JSON for each phase. All
phases share one JVM, and each of them stops the session that it began with.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
sys.path.append(str(Path(__file__).parents[3]))

from pyspark import SparkContext, cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

import pyspark_ckpt as ckpt
from pyspark_ckpt.history.run_log import RecordedRuns, RunEnded
from pyspark_ckpt.spark.jobs import SparkJobs
from pyspark_ckpt.storage.open import LocalStorage
from tests.query import model
from tests.query.harness import INTERVAL, SAVEPOINT_DIR, Feed, Job, until
from tests.query.model import Count, sequences
from tests.query.program_session import program_session
from tests.query.restoring.numbered_job import Gate

cloudpickle.register_pickle_by_value(model)

BARE = re.compile(
    "An error occurred while calling|Answer from Java|Connection refused|stopped SparkContext"
    "|SparkContext was shut down|NoneType|closed channel|LiveListenerBus"
)
"""What Py4J, PySpark and Spark say without a session, which tells the user of a query nothing."""

SLOWLY_S = 20.0
"""In this time each call has to return or to raise."""

OF_QUERY: dict[str, Callable[[Any, Path], Any]] = {
    "addCheckpointListener": lambda q, _: q.addCheckpointListener(ckpt.CheckpointListener()),
    "awaitTermination": lambda q, _: q.awaitTermination(),
    "capture": lambda q, _: q.capture([7]),
    "checkpoints": lambda q, _: q.checkpoints(),
    "exception": lambda q, _: q.exception(),
    "explain": lambda q, _: q.explain(True),
    "history": lambda q, _: q.history(),
    "id": lambda q, _: q.id,
    "isActive": lambda q, _: q.isActive,
    "lastOperatorProgress": lambda q, _: q.lastOperatorProgress,
    "lastProgress": lambda q, _: q.lastProgress,
    "lastRestore": lambda q, _: q.lastRestore,
    "metricsReporters": lambda q, _: q.metricsReporters,
    "name": lambda q, _: q.name,
    "processAllAvailable": lambda q, _: q.processAllAvailable(),
    "recentOperatorProgress": lambda q, _: q.recentOperatorProgress,
    "recentProgress": lambda q, _: q.recentProgress,
    "release": lambda q, _: q.release("op"),
    "removeCheckpointListener": lambda q, _: q.removeCheckpointListener(ckpt.CheckpointListener()),
    "rescale": lambda q, _: q.rescale(3),
    "restartWith": lambda q, _: q.restartWith(lambda: None),
    "runId": lambda q, _: q.runId,
    "state": lambda q, _: q.state("op", "count").get("a"),
    "status": lambda q, _: q.status,
    "stop": lambda q, _: q.stop(),
    "stopWithSavepoint": lambda q, base: q.stopWithSavepoint(str(base / "savepoints")),
    "triggerCheckpoint": lambda q, _: q.triggerCheckpoint(),
    "triggerSavepoint": lambda q, base: q.triggerSavepoint(str(base / "savepoints")),
    "ui": lambda q, _: q.ui().close(),
    "watch": lambda q, _: q.watch(),
    "_repr_html_": lambda q, _: q._repr_html_(),
}
"""A call of each public method; the test compares the names with those of the class."""

OF_STATE: dict[str, Callable[[Any], Any]] = {
    "get": lambda s: s.get("a"),
    "get_with_epoch": lambda s: s.get_with_epoch("a"),
    "schema": lambda s: s.schema,
    "to_arrow": lambda s: s.to_arrow(),
    "to_pandas": lambda s: s.to_pandas(),
}


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_") or name == "_repr_html_"]


def told(call: Callable[[], Any]) -> str:
    """Return what a call returned or raised, or what is wrong with that."""
    began = time.monotonic()
    try:
        with redirect_stdout(io.StringIO()):
            found = f"returned {call()}"[:300]
    except Exception as exc:
        found = f"{type(exc).__name__}: {exc}"
        if not isinstance(exc, (ckpt.errors.CkptError, StreamingQueryException)):
            found = f"BARE {found}"
        if BARE.search(str(exc)) or not str(exc):
            found = f"BARE {found}"
    if time.monotonic() - began > SLOWLY_S:
        found = f"SLOW {found}"
    return found


def story(query: ckpt.CheckpointedQuery) -> dict[str, Any]:
    """Return what a query says of its end, of which all has to be one story."""
    failure = query.exception()
    try:
        awaited: object = query.awaitTermination()
    except ckpt.errors.SessionEndedError as exc:
        awaited = exc is failure
    last = RecordedRuns(query._coordinator.files.storage).starts_and_ends()[-1]
    return {
        "isActive": query.isActive,
        "kind": type(failure).__name__,
        "text": str(failure),
        "awaited": awaited,
        "status": str(failure) in query.status["message"] and not query.status["isTriggerActive"],
        "view": "ended" in query._repr_html_(),
        "recorded": isinstance(last, RunEnded) and last.error == str(failure),
    }


def own_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate() if "ckpt" in thread.name]
    return [name for name in names if "view" not in name]


class Phases:
    """The phases of the program."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def job(self, name: str) -> Job:
        """Return a job in its own session."""
        base = self.base / name
        job = Job(program_session(base), base, Feed(base / "in")).using({INTERVAL: "1h"})
        job = job.using({SAVEPOINT_DIR: str(base / "savepoints")})
        return job.but(processor=Count, output="k string, n long")

    def again(self, job: Job) -> Job:
        """Return the job in another session of the same process."""
        return job.but(spark=program_session(job.base))

    def idle(self) -> dict[str, Any]:
        """Stop the session under two queries that wait for input; ask them everything."""
        job = self.job("idle")
        job.feed.add([("a", 0)])
        query = job.start()
        other = job.but(spark=job.spark.newSession(), location="other", out="other-out").start()
        query.processAllAvailable()
        other.processAllAvailable()
        other.triggerCheckpoint()
        state = query.state("op", "count")
        job.spark.stop()
        found: dict[str, Any] = {
            "story": story(query),
            "other": story(other),
            "query": {name: told(lambda n=name: OF_QUERY[n](query, job.base)) for name in OF_QUERY},
            "state": {name: told(lambda n=name: OF_STATE[n](state)) for name in OF_STATE},
            "missing": sorted({*public(ckpt.CheckpointedQuery)} ^ {*OF_QUERY}),
            "missing of state": sorted({*public(ckpt.results.LiveState)} ^ {*OF_STATE}),
        }
        until(lambda: not own_threads(), f"threads stay: {own_threads()}")
        found["savepoints"] = sorted(map(str, job.base.glob("savepoints/*")))
        return found

    def following(self) -> dict[str, Any]:
        """Continue in the next session, again and again, with input that came between them."""
        job = self.job("following")
        epochs, queries = [], []
        for number in range(2):
            job.feed.add([("a", number)])
            query = job.start()
            queries.append(query)
            query.processAllAvailable()
            epochs.append(query.triggerCheckpoint().epoch)
            job.spark.stop()
            job = self.again(job)
        former = told(lambda: queries[0].rescale(3)), told(queries[0].triggerCheckpoint)
        rolled_back = ckpt.location(str(job.location_path)).rollback("chk-1").to
        found = {
            "epochs": epochs,
            "rows": sequences(job.result()),
            "former": former,
            "rolled back": rolled_back,
            "active": [query.isActive for query in queries],
        }
        try:
            with SparkJobs(job.spark, "a test").running():
                job.spark.stop()
                raise LookupError  # what a caller gets
        except Exception as exc:
            found["error of jobs"] = type(exc).__name__
        return found

    def in_epoch(self) -> dict[str, Any]:
        """Stop the session in another thread while the function of ``foreachBatch`` runs."""
        job, gate, rows = self.job("in_epoch"), Gate(), []

        def collect(df: DataFrame, epoch: int) -> None:
            if epoch == 1:
                gate.wait()
            rows.extend((epoch, row.n) for row in df.collect())

        def start(job: Job) -> ckpt.CheckpointedQuery:
            writer = ckpt.write_stream(job.df()).foreachBatch(collect).options(**job.options)
            return writer.option("checkpointLocation", str(job.location_path)).start()

        job.feed.add([("a", 0)])
        query = start(job)
        query.processAllAvailable()
        job.feed.add([("a", 1)])
        gate.await_arrival()
        stopping = threading.Thread(target=job.spark.stop)
        stopping.start()
        until(lambda: not query.isActive, "the query runs without its session")
        first = str(query.exception())
        gate.open()
        stopping.join()
        found = {"story": story(query), "first": first == str(query.exception())}
        job = self.again(job)
        query = start(job)
        query.processAllAvailable()
        query.stop()
        job.spark.stop()
        return {**found, "rows": rows}

    def in_checkpoint(self) -> dict[str, Any]:
        """Stop it while a checkpoint is written."""
        return self._in("/chk-", lambda query: query.triggerCheckpoint())

    def in_savepoint(self) -> dict[str, Any]:
        """Stop it while a savepoint is written."""
        return self._in("/savepoint-", lambda query: query.triggerSavepoint())

    def _in(self, what: str, call: Callable[[ckpt.CheckpointedQuery], Any]) -> dict[str, Any]:
        job, gate, answers = self.job(f"in{what}".replace("/", "_")), Gate(), []
        job.feed.add([("a", 0)])
        query = job.start()
        query.processAllAvailable()
        with waiting_at(gate, what):
            thread = threading.Thread(target=lambda: answers.append(told(lambda: call(query))))
            thread.start()
            gate.await_arrival()
            job.spark.stop()
            gate.open()
            thread.join()
        found = {"story": story(query), "answer": answers[0]}
        job = self.again(job)
        job.feed.add([("a", 1)])
        query = job.start()
        query.processAllAvailable()
        epoch = query.triggerCheckpoint().epoch
        query.stop()
        found.update(epoch=epoch, rows=sequences(job.result()))
        job.spark.stop()
        found["savepoints"] = [path.name for path in job.base.glob("savepoints/*")]
        return found

    def shadowed(self) -> dict[str, Any]:
        """Stop it under a query that has a shadow."""
        job = self.job("shadowed")
        job.feed.add([("a", 0)])
        query = job.start()
        query.processAllAvailable()
        shadow = ckpt.shadow(query, job.df())
        job.spark.stop()
        until(lambda: not shadow.isActive, "the shadow runs without its session")
        calls = {
            "awaitTermination": lambda: shadow.awaitTermination(1),
            "exception": shadow.exception,
            "promote": lambda: shadow.promote(accept_differences=True),
            "report": lambda: shadow.report,
            "discard": shadow.discard,
        }
        return {name: told(call) for name, call in calls.items()}

    def killed(self) -> dict[str, Any]:
        """Kill the JVM under a query that waits for input; no session follows."""
        job = self.job("killed")
        job.feed.add([("a", 0)])
        query = job.start()
        query.processAllAvailable()
        state = query.state("op", "count")
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        SparkContext._gateway.proc.wait()
        return {
            "story": story(query),
            "query": {name: told(lambda n=name: OF_QUERY[n](query, job.base)) for name in OF_QUERY},
            "state": {name: told(lambda n=name: OF_STATE[n](state)) for name in OF_STATE},
        }


@contextmanager
def waiting_at(gate: Gate, what: str) -> Iterator[None]:
    """Let the local storage wait at a gate before it writes a file of a name."""
    write = LocalStorage.write

    def waiting(self: LocalStorage, path: str, *args: Any, **kwargs: Any) -> Any:
        if what in f"{self.url}/{path}":
            gate.wait()
        return write(self, path, *args, **kwargs)

    LocalStorage.write = waiting
    try:
        yield
    finally:
        LocalStorage.write = write


if __name__ == "__main__":
    phases = Phases(Path(sys.argv[1]))
    for phase in sys.argv[2:]:
        print(">", json.dumps({phase: getattr(phases, phase)()}), flush=True)
    os._exit(0)  # whatever runs on
