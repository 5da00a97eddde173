"""``python -m benchmarks.savepoint``: takes savepoints, restores from them, and measures both.

A wrong state or output ends it with status 1 and without figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine.properties import describe_machine
from benchmarks.runs.run import WrongResultError
from benchmarks.runs.session import Sessions, use_this_python
from benchmarks.runs.spark_operators import BACKENDS
from benchmarks.savepoint.copies import Original
from benchmarks.savepoint.counted_notes import NOTE_BYTES, Program
from benchmarks.savepoint.load import disturb
from benchmarks.savepoint.report import Results, in_turn
from pyspark_ckpt.errors import CkptError

_CHECKED_IN = Path(__file__).parent.parent / "results"
_SCRATCH = Path("bench-output")
_KEYS, _KEYS_AT_REST, _ROWS = 1_000_000, 100, 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the results, and return the exit status."""
    options = _parse(arguments)
    use_this_python()
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt-bench-") as directory:
        sessions = Sessions(Path(directory))
        try:
            for what in options.what:
                for backend in options.backends:
                    results = _measured(sessions, options, what, backend, Path(directory))
                    _write(options.results / f"savepoint_{what}_{backend}", results)
        except (WrongResultError, CkptError) as exc:
            print(f"WRONG RESULT, no figures: {exc}", file=sys.stderr)
            return 1
        finally:
            sessions.stop()
    return 0


def _write(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(results.as_json(), indent=1) + "\n")
    path.with_suffix(".md").write_text(results.markdown())
    print(results.markdown(), flush=True)


def _measured(
    sessions: Sessions, options: argparse.Namespace, what: str, backend: str, directory: Path
) -> Results:
    keys = max(1_000, int(_KEYS * options.scale))
    settings = {
        "keys": keys,
        "keys at rest": _KEYS_AT_REST,
        "keys under load": keys * 2 // 5,
        "rows of an epoch under load": max(100, int(_ROWS * options.scale)),
        "note bytes": NOTE_BYTES,
        "repetitions": options.repetitions,
    }
    results = Results(describe_machine(sessions.new()), settings)
    measure = _measure_load if what == "load" else _measure_copies
    measure(sessions, options, results, directory / f"{backend}-{what}", backend)
    return results


def _measure_copies(
    sessions: Sessions, options: argparse.Namespace, results: Results, place: Path, backend: str
) -> None:
    spark = sessions.new()
    originals = []
    for name, keys in (("rest", _KEYS_AT_REST), ("full", results.settings["keys"])):
        base = place / name
        program = Program(spark, base / "source", backend, base / "savepoints")
        originals.append(Original(program, keys, base))
    at_rest, full = originals
    for savepoint_format in in_turn(0):  # the first ones of a session start workers
        at_rest.round(savepoint_format)
    for number in range(options.repetitions):
        for savepoint_format in in_turn(number):
            turn = backend, savepoint_format
            results.at_rest.setdefault(turn, []).append(at_rest.round(savepoint_format))
            results.rounds.setdefault(turn, []).append(full.round(savepoint_format))
            print(f"{', '.join(turn)}, repetition {number + 1}: result is right", flush=True)
    for original in originals:
        original.stop()
    shutil.rmtree(place)


def _measure_load(
    sessions: Sessions, options: argparse.Namespace, results: Results, place: Path, backend: str
) -> None:
    program = Program(sessions.new(), place / "source", backend, place / "savepoints")
    keys = results.settings["keys under load"]
    rows = results.settings["rows of an epoch under load"]
    results.disturbances[backend] = disturb(program, keys, rows, options.repetitions, place)
    print(f"{backend}, under load: result is right", flush=True)
    shutil.rmtree(place)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.savepoint",
        description="Measure savepoints and restores against a plain copy, and under load.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--scale", type=float, default=0.1, help=f"part of {_KEYS:,} keys")
    parser.add_argument("--repetitions", type=int, default=3, help="of each savepoint")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--what", nargs="+", choices=("copies", "load"), default=["copies", "load"])
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
