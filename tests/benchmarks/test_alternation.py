"""Contenders take turns, over the requested parts of a workload."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.__main__ import main
from benchmarks.runs.alternation import in_turn
from benchmarks.runs.case import Epochs, InputFiles, Program
from benchmarks.runs.program_run import ProgramFailedError, run_program
from benchmarks.runs.run import WrongResultError
from benchmarks.runs.selection import (
    with_cases,
    with_contenders,
    with_most_epochs,
    without_missing_programs,
)
from benchmarks.runs.spark_operators import BACKENDS
from benchmarks.workloads.known import WORKLOADS
from tests.benchmarks.cases import OURS, PEER, case, workload

COPY = """
import json, sys, time, pyarrow as pa, pyarrow.parquet as pq
request = json.loads(sys.argv[1])
rows = pa.concat_tables([pq.ParquetFile(file).read() for file in request["files"]])
pq.write_table(rows, request["output"] + "/output.parquet")
print("a line before")
began_s = time.time()
while time.process_time() < 1:
    pass
spans_s = {"idle": [began_s, began_s], "all": [began_s, time.time()]}
print(json.dumps({"rows": len(rows), "seconds": 2, "spans_s": spans_s}))
"""
"""A program that copies its input, and takes CPU time for it.

A program that reads a file with `pandas.read_parquet` and ends at once is aborted in one of 25 to
100 runs on a busy machine, after all its work (apache/arrow#34314). `ParquetFile` does not do so.
"""


def test_each_repetition_begins_with_another_contender() -> None:
    turns = [(one, contender) for one in workload([]).cases for contender in (OURS, PEER)]
    orders = [in_turn(turns, repetition) for repetition in range(5)]
    assert [order[0] for order in orders] == [*turns, turns[0]]
    assert all(sorted(map(id, order)) == sorted(map(id, turns)) for order in orders)


def test_contenders_are_chosen_by_words_in_their_names() -> None:
    chosen = with_contenders(WORKLOADS["W1"](1), ["Rows, ROCKSDB", "jvm"])
    assert [one.name for one in chosen.cases[0].contenders] == [
        "pyspark_ckpt rows, rocksdb",
        "pyspark_ckpt rows, rocksdb, not durable",
        "pyspark_ckpt rows, rocksdb, combined before",
        "groupBy.agg in the JVM",
    ]
    with pytest.raises(ValueError, match=r"no contender \['typo'\]; it has .*applyInPandas"):
        with_contenders(WORKLOADS["W1"](1), ["typo"])


def test_cases_are_chosen_by_words_of_their_titles() -> None:
    chosen = with_cases(WORKLOADS["W6"](1), ["Query 5", "query 7"])
    assert [case.title.split(",")[0] for case in chosen.cases] == ["Query 5", "Query 7"]


def test_most_epochs_bounds_all_runs() -> None:
    (small, _) = with_most_epochs(workload([]), 1).cases
    assert (small.epochs, small.slow_epochs) == (Epochs(1, 1), Epochs(1, 0))


def test_a_program_that_is_not_installed_is_named() -> None:
    here = Program("here", str(Path(sys.prefix)), "x.py", {}, lambda df: df)
    absent = Program("absent", "no-such-environment", "x.py", {}, lambda df: df)
    both = workload([])
    (first, second) = both.cases
    of = replace(both, cases=[replace(first, contenders=[OURS, here, absent]), second])
    left = without_missing_programs(of)
    assert [one.name for one in left.cases[0].contenders] == ["ours", "here"]
    assert left.text.endswith("Not installed here, and so not measured: absent.")
    with pytest.raises(ValueError, match="absent: not installed"):
        without_missing_programs(replace(of, cases=[replace(first, contenders=[absent])]))


def program(tmp_path: Path, source: str) -> Program:
    script = tmp_path / "script.py"
    script.write_text(source)
    return Program("copy", sys.prefix, str(script), {}, lambda output: output)


def files(tmp_path: Path) -> InputFiles:
    path = tmp_path / "0.parquet"
    pd.DataFrame({"key": [1, 2], "n": [3, 4]}).to_parquet(path)
    return InputFiles([path])


def test_a_program_is_run_and_its_output_checked(tmp_path: Path) -> None:
    given, expected = files(tmp_path), pd.DataFrame({"key": [2, 1], "n": [4, 3]})
    run = run_program(case(), program(tmp_path, COPY), given, expected, tmp_path / "run")
    assert (run.rows, run.seconds, run.epochs) == (2, 2, ())
    assert run.cpu is None or run.cpu.work > 0.2
    wrong = expected.assign(n=0)
    with pytest.raises(WrongResultError, match="small case: copy"):
        run_program(case(), program(tmp_path, COPY), given, wrong, tmp_path / "wrong")


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    failing = program(tmp_path, "raise SystemExit('out of luck')")
    with pytest.raises(ProgramFailedError, match="copy: out of luck"):
        run_program(case(), failing, files(tmp_path), pd.DataFrame(), tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--scale", "0"], "not above 0"),
        (["--scale", "2"], "at most 1"),
        (["--repetitions", "0"], "not at least 1"),
        (["--workload", "W99"], "invalid choice"),
        (["--contenders", "typo"], "no contender"),
        (["--workload", "W6", "--cases", "query 99"], "no case"),
        (["--peers", "--workload", "W3"], "not written for Flink"),
    ],
)
def test_the_command_line_is_checked_before_anything_starts(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert error in capsys.readouterr().err


def test_checked_in_results_are_valid_and_belong_to_a_benchmark() -> None:
    names = {make(1).file_name for make in WORKLOADS.values()} | {
        "snapshot_epochs",
        "snapshot_epochs_by_default",
        "backfill_memory",
        "bootstrap",
        "console_looking",
        "console_looking_busy",
        "console_pages",
        "cost_per_key",
        "import_state",
        "live_reads",
        "rescale_in_place",
        "restarts",
        "state_diff",
        "state_reads",
        "stored_memory",
        "w8_latency",
    }
    names |= {f"savepoint_{what}_{backend}" for what in ("copies", "load") for backend in BACKENDS}
    for path in (Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"):
        assert path.stem.removesuffix("_peers").removesuffix("_with_jar") in names
        assert json.loads(path.read_text())["machine"]["CPUs"]
        assert path.with_suffix(".md").exists()
