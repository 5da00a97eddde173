"""Queries whose Spark session ends before them: one story, no more acts, and a text in each error.

Spark's own query says that it runs and waits for ever, until there is input. Then it fails with a
null pointer. The program asks each public method of a query, so a new one cannot be forgotten.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("stopped_session_program.py")
STORY = {"isActive": False, "kind": "SessionEndedError"} | dict.fromkeys(
    ("awaited", "status", "view", "recorded"), True
)
REFUSED = (
    "capture",
    "rescale",
    "restartWith",
    "stopWithSavepoint",
    "triggerCheckpoint",
    "triggerSavepoint",
)
"""What a query does not do any more."""


def phases(base: Path, *names: str) -> Any:
    printed = subprocess.check_output(
        [sys.executable, str(PROGRAM), str(base), *names], text=True, timeout=500
    )
    lines = [json.loads(line[1:]) for line in printed.splitlines() if line.startswith(">")]
    found = {name: content for line in lines for name, content in line.items()}
    assert list(found) == list(names)
    return found


def check_told(answers: dict[str, str]) -> None:
    wrong = {name: text for name, text in answers.items() if text.startswith(("BARE", "SLOW"))}
    assert not wrong


def without_text(story: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in story.items() if name != "text"}


@pytest.mark.slow
@pytest.mark.own_jvm
@pytest.mark.timeout(600)
def test_a_query_ends_with_its_session_and_continues_in_the_next_one(tmp_path: Path) -> None:
    """The last session ends because somebody kills the JVM."""
    found = phases(tmp_path, "idle", "following", "killed")

    idle = found["idle"]
    assert without_text(idle["story"]) == without_text(idle["other"]) == STORY
    assert "session was stopped before a checkpoint of epoch 0 was taken" in idle["story"]["text"]
    assert "session was stopped." in idle["other"]["text"]
    check_told(idle["query"])
    check_told(idle["state"])
    assert idle["missing"] == idle["missing of state"] == []
    assert idle["query"]["isActive"] == "returned False"
    assert all(idle["query"][name].startswith("CheckpointAbortedError") for name in REFUSED)
    assert idle["savepoints"] == []

    following = found["following"]
    assert following["epochs"] == [0, 1]
    assert following["rows"] == {"a": [1, 2]}
    assert all(text.startswith("CheckpointAbortedError") for text in following["former"])
    assert following["rolled back"] == "chk-1"
    assert following["active"] == [False, False]
    assert following["error of jobs"] == "LookupError"

    killed = found["killed"]
    assert without_text(killed["story"]) == STORY
    assert "JVM of its Spark application has ended" in killed["story"]["text"]
    check_told(killed["query"])
    check_told(killed["state"])


@pytest.mark.slow
@pytest.mark.own_jvm
@pytest.mark.timeout(900)
def test_a_session_that_ends_in_the_midst_of_something(tmp_path: Path) -> None:
    """The next run repeats the epoch, and no savepoint stays in part."""
    found = phases(tmp_path, "in_epoch", "in_checkpoint", "in_savepoint", "shadowed")

    in_epoch = found["in_epoch"]
    assert without_text(in_epoch["story"]) == STORY
    assert "before a checkpoint of epoch 0" in in_epoch["story"]["text"]
    assert in_epoch["first"]
    assert in_epoch["rows"] == [[0, 1], [1, 2]]

    for name in ("in_checkpoint", "in_savepoint"):
        cut = found[name]
        assert without_text(cut["story"]) == STORY
        assert cut["answer"].startswith(("returned", "CheckpointAbortedError")), cut["answer"]
        assert cut["epoch"] == 1
        assert cut["rows"] == {"a": [1, 2]}
    assert found["in_savepoint"]["savepoints"] == []

    check_told(found["shadowed"])
    assert found["shadowed"]["promote"].startswith("CheckpointAbortedError")
