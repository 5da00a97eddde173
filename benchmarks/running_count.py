"""``make bench``: running count and sum per key, this library against PySpark's own operators.

Prints rows per second and ratios, and writes them as JSON and, beside it, Markdown. The contenders
take turns in one session, over the same files, with the same sink and settings. A run whose output
differs from what pandas computes ends the benchmark with status 1 and without figures.

Not measured: skewed keys, state larger than memory, restarts, and clusters.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.contenders import CONTENDERS, Contender, Kind
from benchmarks.cpu import wait_for_quiet
from benchmarks.data import Workload
from benchmarks.measure import MAX_EPOCHS, Run, WrongResultError, new_session, run_checked
from benchmarks.report import Repetition, Report, describe_machine

RESULTS = Path(__file__).parent / "results" / "running_count.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        spark = new_session(Path(directory))
        try:
            repetitions = _repetitions(spark, options, Path(directory))
            machine = describe_machine(spark)
        except WrongResultError as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            spark.stop()
    numbers = {name: value for name, value in vars(options).items() if name != "json"}
    _publish(Report(numbers, machine, repetitions), options.json)
    return 0


def use_this_python() -> None:
    """Have Spark's workers run this interpreter, and find this package wherever they start."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.getenv("PYTHONPATH")]))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # PySpark's own concatenation of pandas frames warns once in each of its calls.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")


def _repetitions(
    spark: SparkSession, options: argparse.Namespace, directory: Path
) -> list[Repetition]:
    workload = Workload(options.keys, options.rows_per_epoch)
    most_epochs = max(options.epochs, options.peer_epochs)
    files = workload.write_epochs(directory / "data", most_epochs)
    repetitions: list[Repetition] = []
    for number in range(options.repetitions):
        runs: dict[str, Run] = {}
        for contender in _in_turn(number):
            is_slow = contender.kind is Kind.PEER
            epochs = options.peer_epochs if is_slow else options.epochs
            warm_up = options.peer_warm_up_epochs if is_slow else options.warm_up_epochs
            # Spark holds on to a stopped query's state: no two runs share a path.
            place = directory / f"run-{number}-{len(runs)}"
            wait_for_quiet(options.patience_seconds)
            run = run_checked(spark, contender, files[:epochs], place, warm_up)
            runs[contender.name] = run
            # No figure is shown before every result was found right.
            print(f"repetition {number + 1}: {contender.name}: result is right", flush=True)
        repetitions.append(runs)
    return repetitions


def _in_turn(repetition: int) -> list[Contender]:
    """Return all contenders, each repetition beginning with another one."""
    first = repetition % len(CONTENDERS)
    return [*CONTENDERS[first:], *CONTENDERS[:first]]


def _publish(report: Report, json_path: Path) -> None:
    text = report.markdown()
    json_path.parent.mkdir(parents=True, exist_ok=True)
    json_path.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    json_path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(f"\n{text}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.running_count",
        description="Running count and sum per key, against PySpark's own stateful operators.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    numbers = {
        "keys": (10_000, "number of keys"),
        "rows-per-epoch": (100_000, "rows in each epoch"),
        "epochs": (64, "epochs of each pyspark_ckpt run; long enough for a periodic checkpoint"),
        "warm-up-epochs": (4, "of these, not counted"),
        "peer-epochs": (4, "epochs of each run of PySpark's own operators, which are slow"),
        "peer-warm-up-epochs": (1, "of these, not counted"),
        "repetitions": (5, "runs of each contender"),
    }
    for name, (default, text) in numbers.items():
        parser.add_argument(f"--{name}", type=_positive, default=default, help=text)
    parser.add_argument(
        "--patience-seconds",
        type=float,
        default=0,
        help="how long each run waits, at most, until other programs leave the machine alone",
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, help="where figures go, as .json and .md"
    )
    options = parser.parse_args(arguments)
    for epochs, warm_up in (
        (options.epochs, options.warm_up_epochs),
        (options.peer_epochs, options.peer_warm_up_epochs),
    ):
        if not warm_up < epochs <= MAX_EPOCHS:
            parser.error(
                f"{epochs} epochs, {warm_up} of them as warm-up: give more than those for warm-up "
                f"and at most {MAX_EPOCHS}"
            )
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
