"""A running query is reached from outside its driver, through its checkpoints directory."""

from __future__ import annotations

import json

import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.history.frames import history
from pyspark_ckpt.history.lineage import lineage
from tests.query.harness import OFTEN, SAVEPOINT_DIR, Job, completed
from tests.query.model import events_of, expected, in_order


@pytest.mark.slow
def test_command_line(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """A savepoint while the query runs, then a stop with a savepoint; the history shows both."""
    job = job.using({SAVEPOINT_DIR: job.base / "savepoints", **OFTEN})
    location = str(job.location_path)
    job.feed.add(*map(events_of, range(2)))
    query = job.start()
    query.processAllAvailable()

    def printed(*arguments: str) -> dict:
        assert main([*arguments, "--json", "--timeout", "120"]) == 0
        return json.loads(capsys.readouterr().out)

    first = printed("savepoint", location, "--type", "native", "--directory", "before")
    assert first["path"].startswith(str(job.base / "savepoints" / "before" / "savepoint-"))
    assert (first["epoch"], query.isActive) == (1, True)
    assert [row.path for row in completed(query, "savepoint")] == [first["path"]]
    assert main(["savepoint", location, "--directory", str(job.base)]) == 1
    assert "not inside" in capsys.readouterr().err
    job.feed.add(events_of(2))
    query.processAllAvailable()
    last = printed("stop", location)
    query.awaitTermination()
    assert last["epoch"] == 2
    saved = history(location).query("kind == 'savepoint'")
    assert list(saved.path) == [first["path"], last["path"]]
    assert list(saved.status) == ["completed", "completed"]
    job.feed.add(events_of(3))
    fork = job.but(location="loc2", out="out2")
    with fork.running(last["path"]) as forked:
        forked.processAllAvailable()
        grandchild = forked.triggerSavepoint()
    assert in_order(job.result() + fork.result()) == expected(job.feed.rows)
    ancestors = lineage(grandchild.path)
    assert list(ancestors.path) == [grandchild.path, last["path"]]
    operators = list(ancestors.operators)
    assert [each["op"]["restored"] for each in operators] == [True, False]
    assert operators[0]["op"]["code_sha256"] == operators[1]["op"]["code_sha256"] != ""
    assert operators[0]["op"]["processor"].endswith("Reveal")
