"""A driver of a walk: ``python -m tests.lives.driver WORK`` reads commands and answers them.

Each line of standard input is a command as JSON, each line of the answers on the descriptor that
``ANSWERS`` names is what became of it. A driver has any number of sessions, one after the other,
and of queries, which have names.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

ANSWERS = "PYSPARK_CKPT_LIVES_ANSWERS"
INPUT = "k string, id long"
OUTPUT = "k string, n long, id long"
UID = "numbering"
PREFIX = "spark.ckpt."
DEADLINE_S = 100
"""How long a query may take for all that is there."""

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Numbering(StatefulProcessor):
    """Emit each row with its number among the rows of its key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, pad string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self.count.get() or (0, ""))[0]
        for row in sorted(rows, key=lambda row: row.id):
            n += 1
            yield Row(k=key[0], n=n, id=row.id)
        self.count.update((n, "x" * 40))

    def close(self) -> None: ...


class NumberingAnew(Numbering):
    """The same by another program, which keeps one more state."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.last = handle.getValueState("last", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in super().handleInputRows(key, rows, timerValues):
            self.last.update((row.id,))
            yield row


class _FailingListener(ckpt.CheckpointListener):
    def onCheckpointCompleted(self, checkpoint: ckpt.results.CompletedCheckpoint) -> None:
        raise ValueError("a listener that fails")


class Driver:
    """What the commands do; each method is one."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._spark: SparkSession | None = None
        self._queries: dict[str, ckpt.CheckpointedQuery] = {}
        self._shadows: dict[str, ckpt.Shadow] = {}
        self._failing: set[str] = set()

    def session(self, zone: str) -> None:
        """Make a session."""
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.sql.session.timeZone", zone)
            .config("spark.local.dir", str(self._work / "local"))
            .config("spark.sql.warehouse.dir", str(self._work / "warehouse"))
            .config(map=ckpt.local_files_conf())
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("OFF")

    def stop_session(self) -> None:
        """Stop the session without its queries."""
        assert self._spark is not None
        self._spark.stop()
        self._spark = None

    def _program(self, spec: dict[str, Any]) -> Callable[[], DataFrame]:
        spark, processor = self._spark, NumberingAnew if spec["anew"] else Numbering
        assert spark is not None

        def build() -> DataFrame:
            rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", spec["at_once"])
            keyed = ckpt.key_by(rows.json(spec["source"]), "k")
            return keyed.transformWithState(processor(), OUTPUT, "Append", "None", uid=UID)

        return build

    def start(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Start a query."""
        assert self._spark is not None
        self._spark.conf.set("spark.sql.shuffle.partitions", spec["parallelism"])
        build = self._program(spec)
        writer = ckpt.write_stream(build if spec["is_function"] else build())
        writer = writer.option("checkpointLocation", spec["location"])
        for key, value in spec["options"].items():
            writer = writer.option(PREFIX + key, value)
        if spec["restore"] is not None:
            writer = writer.restoreFrom(spec["restore"], claimMode=spec["claim"])
        if spec["sink"] == "function":
            out = Path(spec["out"])
            query = writer.foreachBatch(self._function(spec["name"], out)).start()
        else:
            query = writer.start(spec["out"], "parquet")
        if spec["has_failing_listener"]:
            query.addCheckpointListener(_FailingListener())
        self._queries[spec["name"]] = query
        return {"id": query.id}

    def _function(self, name: str, out: Path) -> Callable[[DataFrame, int], None]:
        """Write each epoch into a file, and which epochs are void, as the documentation says."""
        failing = self._failing

        def write(df: DataFrame, epoch: int) -> None:
            if name in failing:
                failing.discard(name)
                raise ValueError("a function that fails")
            now = ckpt.current_epoch()
            out.mkdir(parents=True, exist_ok=True)
            rows = [[row.k, row.n, row.id] for row in df.collect()]
            _write(out / f"{now.query_id}~{now.number}.json", rows)
            _write(out / "void.json", [[each.query_id, each.after] for each in now.rolled_back])

        return write

    def fail_next(self, name: str) -> None:
        """Let the query's function fail once."""
        self._failing.add(name)

    def process(self, name: str) -> None:
        """Wait until the query has processed all that is there."""
        self._queries[name].processAllAvailable()

    def stop(self, name: str) -> dict[str, Any]:
        """Stop a query, and say whether it runs."""
        query = self._queries[name]
        query.stop()
        return {"is_active": query.isActive}

    def ended(self, name: str) -> dict[str, Any]:
        """Wait for the end of a query; say what it says of it."""
        query = self._queries[name]
        is_over, error = None, None
        try:
            is_over = query.awaitTermination(DEADLINE_S)
        except Exception as exc:
            error = _of(exc)
        exception = query.exception()
        return {
            "is_over": is_over,
            "raised": error,
            "is_active": query.isActive,
            "exception": None if exception is None else _of(exception),
        }

    def is_active(self, name: str) -> bool:
        """Say whether a query runs."""
        return self._queries[name].isActive

    def checkpoint(self, name: str) -> dict[str, Any]:
        """Take a checkpoint."""
        taken = self._queries[name].triggerCheckpoint()
        return {"id": taken.checkpoint_id, "path": taken.path, "epoch": taken.epoch}

    def savepoint(self, name: str, directory: str, format: str) -> str:
        """Take a savepoint."""
        return self._queries[name].triggerSavepoint(directory, format).path

    def stop_with_savepoint(self, name: str, directory: str, drain: bool) -> str:
        """Stop a query with a savepoint."""
        return self._queries[name].stopWithSavepoint(directory, drain=drain).path

    def rollback(self, location: str, to: str, directory: str | None, force: bool) -> str:
        """Roll back a location; return the name of what was kept."""
        done = ckpt.location(location).rollback(to, directory, force=force)
        return Path(done.kept).name

    def rescale(self, name: str, parallelism: int) -> None:
        """Rescale a query in place."""
        self._queries[name].rescale(parallelism)

    def restart(self, name: str, spec: dict[str, Any]) -> None:
        """Restart a query in place with another program."""
        self._queries[name].restartWith(self._program(spec))

    def shadow(self, name: str, spec: dict[str, Any]) -> None:
        """Begin a shadow of a query."""
        self._shadows[name] = ckpt.shadow(self._queries[name], self._program(spec))

    def shadow_report(self, name: str) -> dict[str, Any]:
        """Say what a shadow has found."""
        shadow = self._shadows[name]
        error = shadow.exception()
        return {
            "epochs": shadow.report.epochs,
            "is_equal": shadow.report.is_equal,
            "is_active": shadow.isActive,
            "exception": None if error is None else _of(error),
        }

    def discard(self, name: str) -> None:
        """Discard a shadow."""
        self._shadows.pop(name).discard()

    def promote(self, name: str, directory: str) -> str:
        """Promote a shadow's candidate."""
        return self._shadows.pop(name).promote(directory).savepoint.path

    def live(self, name: str, keys: list[str]) -> dict[str, int | None]:
        """Read the counts of keys of a running query."""
        state = self._queries[name].state(UID, "count")
        found = {key: state.get(key) for key in keys}
        return {key: None if value is None else value["n"] for key, value in found.items()}

    def stored(self, path: str) -> dict[str, int]:
        """Read the counts that a checkpoint, a savepoint or a location has."""
        with ckpt.location(path).state() as snapshot:
            frame = snapshot.state(UID, "count").to_pandas()
        return {row.k: int(row.n) for row in frame.itertuples()}

    def output(self, out: str) -> list[list[Any]]:
        """Read what Spark finds in the directory of a file sink."""
        assert self._spark is not None
        rows = self._spark.read.schema(OUTPUT).parquet(out).collect()
        return [[row.k, row.n, row.id] for row in rows]

    def drop_local_copies(self) -> int:
        """Delete the state that executors keep on their disk."""
        import shutil

        found = list((self._work / "local").rglob("pyspark_ckpt"))
        for path in found:
            shutil.rmtree(path, ignore_errors=True)
        return len(found)


def read_function_output(out: Path) -> Counter[tuple[str, int, int]]:
    """Return the rows of the epochs that count in the directory of a function."""
    if not out.exists():
        return Counter()
    void = json.loads((out / "void.json").read_text())
    rows: Counter[tuple[str, int, int]] = Counter()
    for path in out.glob("*~*.json"):
        query_id, _, epoch = path.stem.partition("~")
        if not any(query_id == each and int(epoch) > after for each, after in void):
            rows.update(tuple(row) for row in json.loads(path.read_text()))
    return rows


def _write(path: Path, what: Any) -> None:
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(json.dumps(what))
    hidden.rename(path)


def _of(error: BaseException) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "is_ours": isinstance(error, ckpt.errors.CkptError),
        "text": str(error)[:3000],
    }


def main(work: Path) -> None:
    faulthandler.enable()  # a driver that hangs is ended with SIGABRT
    driver = Driver(work)
    answers = os.fdopen(int(os.environ[ANSWERS]), "w")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": getattr(driver, name)(**arguments)}
        except Exception as exc:
            import traceback

            traceback.print_exc()
            answer = {"error": _of(exc)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
