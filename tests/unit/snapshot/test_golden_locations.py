"""The typed tables of whole golden locations: every kind of state of their query.

``expected.json`` says what the processor saw of each key at its next row. It was computed from the
input alone, so it shares nothing with the code that reads.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from tests.golden.archives import ARCHIVES, OF_NEWEST, in_parts, name_of, newest, unpack

EXPECTED = json.loads(newest("heap").with_name("expected.json").read_text())
UID = "everything"
NEXT_EPOCH_ROWS = [tuple(row) for row in EXPECTED["later"]["4"]["rows"]]
Rows = list[dict[str, Any]]


WHOLE = [*(pytest.param(each, id=name_of(each)) for each in OF_NEWEST), *in_parts()]


@pytest.fixture(scope="module", params=WHOLE)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(request.param, tmp_path_factory.mktemp("golden"))


@pytest.fixture(params=["location", "chk", "canonical", "native"])
def snapshot(whole: Path, request: pytest.FixtureRequest) -> Iterator[ckpt.results.Snapshot]:
    place = whole / request.param
    if request.param == "chk":
        place = newest_checkpoint(whole)
    with ckpt.location(str(place)).state() as opened:
        yield opened


def newest_checkpoint(whole: Path) -> Path:
    retained = (whole / "location" / "pyspark_ckpt").glob("chk-*")
    return max(retained, key=lambda path: int(path.name.removeprefix("chk-")))


def seen() -> dict[str, dict[str, Any]]:
    """Return what the processor saw of each key at the first row after the snapshot."""
    value_of = {key: value for key, value, _ in NEXT_EPOCH_ROWS}
    return {
        row["k"]: row["told"]
        for row in EXPECTED["told_by_2"]
        if row["what"] == "row" and row["told"]["v"] == value_of[row["k"]]
    }


def subtasks_seen() -> dict[int, dict[str, Any]]:
    """Return what each subtask saw of its own state at the first rule after the snapshot."""
    found: dict[int, dict[str, Any]] = {}
    for row in EXPECTED["told_by_2"]:
        if row["what"] == "rules":
            found.setdefault(row["subtask"], row["told"])
    return found


def ms(time: Any) -> int:
    return round(time.timestamp() * 1000)


def of_keys(view: ckpt.results.TableView) -> dict[str, Rows]:
    found: dict[str, Rows] = defaultdict(list)
    for row in view.to_arrow().read_all().to_pylist():
        found[row.pop("k")].append(row)
    return found


def as_told(rows: dict[str, Rows]) -> dict[str, Any]:
    """Return the states of one key in the form in which the processor told them."""
    (total,) = rows["total"]
    tally = [[r["bucket"], r["odd"], r["times"], r["note"]] for r in rows["tally"]]
    items = [[r["v"], None if r["raw"] is None else r["raw"].decode()] for r in rows["items"]]
    return {
        "total": [total["n"], str(total["sum"]), ms(total["last"]), total["tags"]],
        "items": items,
        "tally": sorted(tally),
        "lasting": [row["v"] for row in rows["lasting"]],
        "short": [row["v"] for row in rows["short"]],
        "aging": sorted([row["v"], row["twice"]] for row in rows["aging"]),
        "timers": sorted(ms(row["fires_at"]) for row in rows["timers"]),
    }


NAMES = ("total", "items", "tally", "lasting", "short", "aging")


@pytest.mark.slow
def test_keyed_states_and_timers_are_what_the_processor_saw(
    snapshot: ckpt.results.Snapshot,
) -> None:
    tables = {name: of_keys(snapshot.state(UID, name)) for name in NAMES}
    tables["timers"] = of_keys(snapshot.timers(UID))
    expected = seen()
    assert len(expected) == len(NEXT_EPOCH_ROWS)
    for key, told in expected.items():
        found = as_told({name: table.get(key, []) for name, table in tables.items()})
        assert found == {name: told[name] for name in found}
    assert {key for table in tables.values() for key in table} == set(expected)


@pytest.mark.soak_variants
def test_one_key(snapshot: ckpt.results.Snapshot) -> None:
    for key, told in seen().items():
        rows: dict[str, Rows] = {"timers": []}
        for name in NAMES:
            found = snapshot.state(UID, name).get(key)
            rows[name] = [found] if name == "total" else found or []
        found = as_told(rows)
        assert all(found[name] == told[name] for name in NAMES)


@pytest.mark.slow
def test_state_of_subtasks(snapshot: ckpt.results.Snapshot) -> None:
    told = subtasks_seen()
    for name in ("dealt", "united"):
        lists: dict[int, list[int]] = defaultdict(list)
        for row in snapshot.state(UID, name).to_arrow().read_all().to_pylist():
            lists[row["subtask"]].append(row["v"])
        assert {subtask: sorted(values) for subtask, values in lists.items()} == {
            subtask: each[name] for subtask, each in told.items()
        }
    # The first rules after the snapshot were added before the processor told of them.
    rules = {row["name"]: row["factor"] for row in rows_of(snapshot.state(UID, "rules"))}
    rules.update(EXPECTED["later"]["4"]["rules"])
    assert all(dict(each["rules"]) == rules for each in told.values())
    fired = {row["subtask"]: json.loads(row["data"]) for row in rows_of(snapshot.raw(UID))}
    assert fired == {subtask: {"fired": each["fired"]} for subtask, each in told.items()}


def rows_of(view: ckpt.results.TableView) -> Rows:
    return list(view.to_arrow().read_all().to_pylist())


def test_the_second_operator(snapshot: ckpt.results.Snapshot) -> None:
    counts = {row["what"]: row["n"] for row in rows_of(snapshot.state("counted", "n"))}
    assert counts == EXPECTED["counted"]


def test_the_third_operator(snapshot: ckpt.results.Snapshot) -> None:
    counted = EXPECTED["counted"]
    assert {row["what"]: row["n"] for row in rows_of(snapshot.state("merged", "most"))} == counted
    mean = {
        row["what"]: (row["total"], row["n"]) for row in rows_of(snapshot.state("merged", "mean"))
    }
    assert mean == {what: (n * (n + 1) // 2, n) for what, n in counted.items()}


@pytest.mark.parametrize("archive", ARCHIVES, ids=name_of)
def test_each_archive_is_read(archive: Path, tmp_path: Path) -> None:
    """Checkpoint, location and both savepoints of each backend and each version of PySpark."""
    whole = unpack(archive, tmp_path)
    assert json.loads(whole.with_name("expected.json").read_text()) == EXPECTED
    for place in (
        newest_checkpoint(whole),
        *(whole / n for n in ("location", "canonical", "native")),
    ):
        with ckpt.location(str(place)).state() as opened:
            counts = {row["what"]: row["n"] for row in rows_of(opened.state("counted", "n"))}
            assert counts == EXPECTED["counted"]
            found = {row["what"]: row["n"] for row in rows_of(opened.state("merged", "most"))}
            assert found == EXPECTED["counted"]


def test_every_retained_checkpoint_is_readable(whole: Path) -> None:
    """Counts of rows never shrink from one checkpoint to the next."""
    paths = (whole / "location" / "pyspark_ckpt").glob("chk-*")
    in_order = sorted(paths, key=lambda path: int(path.name.removeprefix("chk-")))
    assert len(in_order) > 1
    counts = []
    for path in in_order:
        with ckpt.location(str(path)).state() as opened:
            rows = {row["what"]: row["n"] for row in rows_of(opened.state("counted", "n"))}
            assert rows["row"] == sum(row["n"] for row in rows_of(opened.state(UID, "total")))
            counts.append(rows["row"])
    assert counts == sorted(counts)
    assert counts[-1] == EXPECTED["counted"]["row"]


def test_a_location_differs_from_its_savepoints_in_nothing(whole: Path) -> None:
    """Formats, and a checkpoint next to a savepoint, compared by the difference of snapshots."""
    for other in ("canonical", "native"):
        difference = ckpt.location(str(whole / "location")).diff(str(whole / other))
        assert difference.is_equal
