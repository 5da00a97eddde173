"""``python -m benchmarks.import_state``: an import against a read with Spark's own state reader.

Both read the same state of a stopped query of Spark, in turns. The imported state is compared with
what the query wrote: entry by entry in number, and by an epoch of the restored query over one key
in a hundred. A wrong row ends the benchmark with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import pyspark_ckpt as ckpt
from benchmarks.machine.properties import describe_machine
from benchmarks.reports.markdown_table import table
from benchmarks.runs.session import Sessions, use_this_python
from pyspark_ckpt.restore.source import RestoreSource

_CHECKED_IN = Path(__file__).parent / "results"
_SCRATCH = Path("bench-output")
_KEYS = 1_000_000
_LIMIT = 3
_ONE_IN = 100
_HOW = (
    "A query of Spark's own `transformWithState` keeps a count and a text per key in RocksDB. "
    '*Read* is `spark.read.format("statestore")` of this state into the sink `noop`, so no value '
    "leaves the JVM. *Import* is `import_checkpoint` from its call to its return. They take turns "
    "in one session. The entries were counted, and a query that was restored from the import "
    "emitted the right rows for one key in a hundred."
)
OUTPUT = "k long, n long, name string"


class Count(StatefulProcessor):
    """A count and a name per key."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, name string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = self.count.get()[0] if self.count.exists() else 0
        n += sum(1 for _ in rows)
        self.count.update((n, f"name of {key[0]}"))
        yield Row(k=key[0], n=n, name=self.count.get()[1])

    def close(self) -> None:
        """Do nothing."""


class WrongImportError(Exception):
    """The imported state is not what Spark had."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the results and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory))
        try:
            spark = sessions.new()
            figures = _measure(spark, Path(directory), options)
            results = {"machine": describe_machine(spark), **figures}
        except WrongImportError as exc:
            print(exc, file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    text = _report(results)
    print(text)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "import_state.md").write_text(text, encoding="utf-8")
    (options.results / "import_state.json").write_text(json.dumps(results, indent=2) + "\n")
    return 0


def _measure(spark: SparkSession, base: Path, options: argparse.Namespace) -> dict[str, Any]:
    keys = max(1_000, int(_KEYS * options.scale))
    stopped = StoppedQuery(spark, base / "query", keys)
    rest = StoppedQuery(spark, base / "rest", _ONE_IN)
    rest.imported()  # the first one of a session starts workers
    reads, to_python, imports, at_rest = [], [], [], []
    for number in range(options.repetitions):
        turns: list[tuple[list[float], Callable[[], Any]]] = [
            (reads, stopped.read),
            (to_python, stopped.read_to_python),
            (imports, stopped.imported),
            (at_rest, rest.imported),
        ]
        for seconds, run in turns if number % 2 == 0 else reversed(turns):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
    stopped.check()
    return {
        "keys": keys,
        "partitions": int(spark.conf.get("spark.sql.shuffle.partitions") or 0),
        "repetitions": options.repetitions,
        "read_s": reads,
        "read_to_python_s": to_python,
        "import_s": imports,
        "import_at_rest_s": at_rest,
        "ratio": [each / read for each, read in zip(imports, reads, strict=True)],
        "ratio_to_python": [each / read for each, read in zip(imports, to_python, strict=True)],
    }


class StoppedQuery:
    """A stopped query of Spark with a key per row of its input."""

    def __init__(self, spark: SparkSession, base: Path, keys: int) -> None:
        self._spark, self._base, self._keys = spark, base, keys
        self._input, self._native = str(base / "input"), str(base / "native")
        self._savepoint: ckpt.results.Savepoint | None = None
        spark.range(keys).withColumnRenamed("id", "k").write.parquet(self._input)
        made = self._stream().groupBy("k").transformWithState(Count(), OUTPUT, "Update", "None")
        writer = made.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        writer.start(checkpointLocation=self._native).awaitTermination()

    def read(self) -> None:
        """Read all state with Spark's own reader, and keep nothing."""
        self._table().write.format("noop").mode("overwrite").save()

    def read_to_python(self) -> None:
        """Read all state with Spark's own reader into an Arrow table."""
        rows = self._table().select("key.*", "value.*").toArrow().num_rows
        if rows != self._keys:
            raise WrongImportError(f"Spark's reader returned {rows} rows of {self._keys}")

    def imported(self) -> None:
        """Import the query."""
        self._savepoint = ckpt.location(self._native).import_checkpoint(
            str(self._base / "savepoints"),
            processor=Count(),
            uid="count",
            spark=self._spark,
        )

    def check(self) -> None:
        """Compare the newest savepoint with what the query wrote."""
        assert self._savepoint is not None
        handles = RestoreSource(self._savepoint.path).metadata.handles()
        entries = sum(each.base.entries or 0 for each in handles if each.base is not None)
        if entries != self._keys:
            raise WrongImportError(f"{entries} entries were imported of {self._keys} keys")
        some = self._spark.range(0, self._keys, _ONE_IN).withColumnRenamed("id", "k")
        some.write.mode("append").parquet(self._input)
        emitted: list[tuple[Any, ...]] = []
        counts = ckpt.key_by(self._stream(), "k").transformWithState(
            Count(), OUTPUT, "Update", "None", uid="count"
        )
        query = (
            ckpt.write_stream(counts)
            .restoreFrom(self._savepoint.path)
            .foreachBatch(lambda df, _: emitted.extend(map(tuple, df.collect())))
            .outputMode("update")
            .option("checkpointLocation", str(self._base / "ours"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if sorted(emitted) != [(k, 2, f"name of {k}") for k in range(0, self._keys, _ONE_IN)]:
            raise WrongImportError(f"the restored query emitted {len(emitted)} other rows")

    def _table(self) -> DataFrame:
        reader = self._spark.read.format("statestore").option("stateVarName", "count")
        return reader.load(self._native)

    def _stream(self) -> DataFrame:
        return self._spark.readStream.schema("k long").parquet(self._input)


def _report(results: dict[str, Any]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    ratio = statistics.median(results["ratio"])
    reached = "reached" if ratio <= _LIMIT else "missed"
    rows = [["", "seconds, median (lowest to highest)"]]
    for name, key in (
        ("read with Spark's state reader", "read_s"),
        ("the same, into an Arrow table in Python", "read_to_python_s"),
        ("import", "import_s"),
        (f"import of {_ONE_IN} keys", "import_at_rest_s"),
    ):
        rows.append([name, _spread(results[key])])
    settings = f"keys {results['keys']}, partitions {results['partitions']}"
    lines = [
        "# Import of Spark's state",
        "",
        f"Settings: {settings}, repetitions {results['repetitions']}.",
        "",
        f"Machine: {machine}.",
        "",
        _HOW,
        "",
        f"- import: {_spread(results['ratio'])} times the read, limit {_LIMIT}: {reached}",
        f"- import: {_spread(results['ratio_to_python'])} times the read into Python",
        "",
        *table(rows),
        "",
    ]
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.import_state",
        description="Measure an import against a read with Spark's own state reader.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--scale", type=float, default=0.1, help=f"part of {_KEYS:,} keys")
    parser.add_argument("--repetitions", type=int, default=3, help="of each")
    parser.add_argument(
        "--results",
        type=Path,
        help=f"where figures go; by default {_CHECKED_IN.parent.name}/{_CHECKED_IN.name} at full "
        f"size, else {_SCRATCH}",
    )
    options = parser.parse_args(arguments)
    options.results = options.results or (_CHECKED_IN if options.scale == 1 else _SCRATCH)
    return options


if __name__ == "__main__":
    sys.exit(main())
