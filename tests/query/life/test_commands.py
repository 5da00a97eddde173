"""``pyspark-ckpt plan`` and ``rollback``, as separate programs on a query's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from tests.query.harness import INTERVAL, Feed, Job

PROGRAM = """
import pyspark_ckpt as ckpt
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Sum(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key, rows, timerValues):
        yield Row(k=key[0], n=1)

    def close(self): ...


def build(spark, uid="op", key="k"):
    events = spark.readStream.schema("k string, v long").parquet({source!r})
    return ckpt.key_by(events, key).transformWithState(
        Sum(), "k string, n long", "Append", "None", uid=uid
    )


def other_uid(spark):
    return ckpt.write_stream(build(spark, "other"))


def no_query():
    return 1


if __name__ == "__main__":
    raise SystemExit("plan ran the program instead of its function")
"""


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command as a user does; return its exit code and what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": str(Path(ckpt.__file__).parents[2])},
        capture_output=True, text=True, check=False, timeout=180,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def program(tmp_path: Path, feed: Feed) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(source=str(feed.path)))
    return path


@pytest.mark.soak
@pytest.mark.own_jvm
def test_plan_shows_what_a_restore_would_do(job: Job, feed: Feed, program: Path) -> None:
    """The query is built by the user's function; nothing is started or written."""
    feed.add([("a", 1), ("b", 2)])
    savepoint = job.run().triggerSavepoint(str(job.base / "sp"))
    before = sorted(job.base.rglob("*"))
    code, printed = command(
        "plan", savepoint.path, f"{program}:build", "--conf", "spark.sql.shuffle.partitions=3"
    )
    assert (code, printed["can_start"], printed["epoch"]) == (0, True, 0)
    outcomes = {(row["operator"], row["state"]): row["outcome"] for row in printed["states"]}
    assert outcomes["op", "total"] == "new"
    assert outcomes["op", "(operator)"] == "restored"
    why = next(row["why"] for row in printed["states"] if row["state"] == "(operator)")
    assert "parallelism 2 -> 3" in why
    code, printed = command("plan", savepoint.path, f"{program}:other_uid")
    assert (code, printed["can_start"]) == (1, False)
    assert printed["errors"][0]["kind"] == "RestoreError"
    assert sorted(path for path in job.base.rglob("*") if path.suffix != ".pyc") == before


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ("{path}:no_query", "returns int"),
        ("{path}:missing", "no function 'missing'"),
        ("{path}.txt:build", "no file"),
        ("{path}", "FILE.py:FUNCTION"),
    ],
)
@pytest.mark.own_jvm
@pytest.mark.soak
def test_plan_says_what_is_wrong_with_the_program(
    named: str, error: str, program: Path, tmp_path: Path
) -> None:
    code, printed = command("plan", str(tmp_path), named.format(path=program))
    assert code == 1
    assert printed["error"]["kind"] == "ConfigurationError"
    assert error in printed["error"]["message"]


@pytest.mark.soak
@pytest.mark.own_jvm
def test_rollback_puts_a_location_back(job: Job, feed: Feed) -> None:
    """The query that starts there next continues from the checkpoint."""
    feed.add([("a", 1)])
    often = job.using({INTERVAL: "1h"})
    often.run()
    feed.add([("a", 2)])
    often.run()
    newest = [row.epoch for row in ckpt.location(str(job.location_path)).history().itertuples()]
    assert newest == [0, 1]
    code, printed = command("rollback", str(job.location_path), "chk-1")
    assert (code, printed["to"]) == (0, "chk-1")
    assert Path(printed["kept"]).is_dir()
    again = often.but(out="again")
    again.run()
    assert [row[:2] for row in again.result()] == [("a", 2)]
    code, printed = command("rollback", str(job.location_path), "chk-99")
    assert code == 1
    assert "chk-99" in printed["error"]["message"]
