"""The reader without the library finds what ``open_state`` finds, in golden files."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt import location
from tests.golden.archives import ARCHIVES, name_of, unpack
from tools import read_savepoint

ROOT = Path(__file__).parents[3]
CANONICAL = sorted(ROOT.glob("tests/golden/*/*-canonical/savepoint"))
MOST_LINES = 200
STANDARD = {"__future__", "hashlib", "json", "struct", "sys", "collections", "pathlib", "typing"}


def stored(value: Any) -> Any:
    """Return a value of a table in the form in which it is stored."""
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, Decimal):
        return str(value)
    return value


def by_library(path: Path, operator: str, name: str) -> list[tuple[Any, ...]]:
    with location(str(path)).state() as snapshot:
        table = snapshot.state(operator, name).to_arrow().read_all()
    columns = [each for each in table.column_names if each not in ("position", "expires_at")]
    return sorted(
        (tuple(stored(row[column]) for column in columns) for row in table.to_pylist()), key=repr
    )


def by_reader(path: Path, operator: str, name: str) -> Iterator[tuple[Any, ...]]:
    for entry in read_savepoint.read_entries(path):
        if (entry["operator"], entry["state"]) == (operator, name):
            yield (*entry["key"], *entry.get("map_key", ()), *entry["value"])


def test_there_are_canonical_golden_savepoints() -> None:
    assert len([*CANONICAL, *ARCHIVES]) >= 7


@pytest.mark.parametrize(
    "path",
    [*CANONICAL, *ARCHIVES],
    ids=lambda path: name_of(path) if path in ARCHIVES else path.parent.name,
)
def test_the_reader_finds_what_the_library_finds(path: Path, tmp_path: Path) -> None:
    if path in ARCHIVES:
        path = unpack(path, tmp_path) / "canonical"
    else:
        path = shutil.copytree(path, tmp_path / "savepoint")
    with location(str(path)).state() as snapshot:
        states = snapshot.states()
        timers = {
            uid: snapshot.timers(uid).to_arrow().read_all().num_rows for uid in snapshot.operators
        }
    compared = 0
    for row in states.itertuples():
        if row.kind in read_savepoint.KINDS_WITH_KEY:
            found = sorted(by_reader(path, row.operator, row.state), key=repr)
            assert found == by_library(path, row.operator, row.state), (row.operator, row.state)
            compared += len(found)
    assert compared > 20
    entries = list(read_savepoint.read_entries(path))
    for uid, number in timers.items():
        kinds = [each["kind"] for each in entries if each["operator"] == uid]
        assert kinds.count("timer") == number


@pytest.mark.parametrize("name", ["_metadata", "shared"])
def test_the_reader_refuses_a_changed_file(name: str, tmp_path: Path) -> None:
    path = shutil.copytree(CANONICAL[0], tmp_path / "savepoint")
    damaged = path / name
    if damaged.is_dir():
        damaged = max(damaged.iterdir(), key=lambda each: each.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[-20] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        list(read_savepoint.read_entries(path))


def test_the_reader_is_short_and_needs_nothing_but_pyarrow() -> None:
    source = Path(read_savepoint.__file__).read_text()
    assert len(source.splitlines()) < MOST_LINES
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module).partition(".")[0])
    assert modules - STANDARD == {"pyarrow"}
