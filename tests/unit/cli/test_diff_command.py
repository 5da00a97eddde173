"""``pyspark-ckpt diff``: what it prints of changed rows, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.cli.main import main
from tests.unit.snapshot.made_savepoint import MadeSavepoint

LARGE = 2**53
"""From here on, a double has not every whole number."""

KEYS = [(b"\xff\x00", "None"), (b"\x01", None), (b"\x02", "-")]
KEY_SCHEMA = T.StructType().add("id", "binary").add("user", "string")
VALUE_SCHEMA = (
    T.StructType().add("n", "long").add("part", "binary").add("parts", T.ArrayType(T.BinaryType()))
)


@pytest.fixture
def changed(tmp_path: Path) -> tuple[str, str]:
    """Two savepoints: one key has another value, one is new, one is gone."""
    made = MadeSavepoint(tmp_path / "made", KEY_SCHEMA, KEYS)

    def init(handle: Any) -> dict[str, Any]:
        return {"of": handle.getValueState("of", VALUE_SCHEMA)}

    def before(states: dict[str, Any], key: Any) -> None:
        if key != KEYS[1]:
            states["of"].update((LARGE + 1, b"\xfe", [b"\xfd"]))

    def after(states: dict[str, Any], key: Any) -> None:
        if key == KEYS[2]:
            states["of"].clear()
        else:
            states["of"].update((LARGE + 3, None, None))

    paths: list[str] = []
    for work in (before, after):
        made.epoch(init, work)
        paths.append(made.save(f"savepoint-{len(paths)}", canonical=True))
    made.close()
    return paths[0], paths[1]


def test_rows_are_shown_as_state_shows_them(
    changed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bytes in hex, every long exactly, and a null as nothing else."""
    assert main(["diff", *changed]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["op", "of", "value", "1", "1", "1"] in lines
    rows = {line[1]: line for line in lines if line and line[0] in ("added", "removed", "changed")}
    old, new = str(LARGE + 1), str(LARGE + 3)
    assert rows == {
        "ff00": ["changed", "ff00", "None", old, "fe", '["fd"]', new, "-", "-"],
        "01": ["added", "01", "-", "-", "-", "-", new, "-", "-"],
        "02": ["removed", "02", '"-"', old, "fe", '["fd"]', "-", "-", "-"],
    }


def test_json_has_the_same_rows(
    changed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *changed, "--json"]) == 1
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    assert (sample["operator"], sample["state"]) == ("op", "of")
    old = {"old_n": LARGE + 1, "old_part": "fe", "old_parts": ["fd"]}
    new = {"new_n": LARGE + 3, "new_part": None, "new_parts": None}
    nothing = dict.fromkeys(old), dict.fromkeys(new)
    assert sorted(sample["changes"], key=lambda row: row["id"]) == [
        {"change": "added", "id": "01", "user": None, **nothing[0], **new},
        {"change": "removed", "id": "02", "user": "-", **old, **nothing[1]},
        {"change": "changed", "id": "ff00", "user": "None", **old, **new},
    ]


def test_no_rows_may_be_wanted(
    changed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *changed, "--limit", "0"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2 + 1, "the counts"
