"""Samples of states: what is over its time to live, which timers are due, and what they cost."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.console.data import states as sampled_state
from pyspark_ckpt.console.data.places import key_of
from pyspark_ckpt.console.data.states import entries_of_key, sample_of, timers_of
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.formats import canonical_file
from pyspark_ckpt.formats.metadata_file import read_metadata
from pyspark_ckpt.formats.modes import CheckpointKind, TimeMode
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.snapshot.views import StateView
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.snapshot.made_savepoint import TIME_MS, UID, Key, MadeSavepoint

NAMES = T.StructType().add("name", "string")
NUMBER = T.StructType().add("n", "long")
STAMPED = T.StructType().add("expires_at", "timestamp")
"""The column of the time to live then has another name."""

HOUR_MS = 3_600_000
YEARS_LATER_MS = TIME_MS + 50_000 * HOUR_MS
"""Old data is replayed: the clock is far ahead of the watermark."""

OLD: list[Key] = [("a",), ("b",), ("c",)]
NEW: list[Key] = [("d",), ("e",)]


@pytest.fixture
def savepoint(tmp_path: Path) -> Iterator[MadeSavepoint]:
    made = MadeSavepoint(tmp_path, NAMES, [*OLD, *NEW])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("mode", "saved_at_ms"),
    [(TimeMode.EVENT_TIME, YEARS_LATER_MS), (TimeMode.PROCESSING_TIME, None)],
)
def test_entries_expire_and_timers_are_due_in_their_own_time(
    savepoint: MadeSavepoint, mode: TimeMode, saved_at_ms: int | None
) -> None:
    time = "event" if mode is TimeMode.EVENT_TIME else "processing"
    handles = []

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        handles[:] = [handle]
        ttl = StateTtlConfig(HOUR_MS, time, visibility="ReturnExpiredIfNotCleanedUp")
        return {
            "aging": handle.getValueState("aging", STAMPED, ttl),
            "lasting": handle.getValueState("lasting", NUMBER),
        }

    def write(states: dict[str, Any], key: Key) -> None:
        if key not in written:
            return
        states["aging"].update((None,))
        states["lasting"].update((1,))
        handles[0].registerTimer(savepoint.time_ms + HOUR_MS)

    savepoint.time_mode, savepoint.saved_at_ms = mode, saved_at_ms
    written = OLD
    savepoint.epoch(init, write)
    savepoint.time_ms += HOUR_MS // 2
    written = NEW
    savepoint.epoch(init, write)
    for later_ms, due in ((0, 0), (HOUR_MS // 2, len(OLD)), (HOUR_MS, len(OLD + NEW))):
        savepoint.time_ms = TIME_MS + HOUR_MS // 2 + later_ms
        with ckpt.location(savepoint.save(f"after-{later_ms}", canonical=True)).state() as snapshot:
            aging = sample_of(snapshot, UID, "aging", None)
            assert (aging.rows, aging.expired) == (len(OLD + NEW), due)
            timers = timers_of(snapshot, UID)
            assert (timers.timers, timers.due) == (len(OLD + NEW), due)
            assert sample_of(snapshot, UID, "lasting", None).expired is None


@pytest.mark.parametrize("canonical", [True, False])
def test_a_sample_ends_in_time_among_the_entries_of_another_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, canonical: bool
) -> None:
    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {
            "large": handle.getValueState("large", NUMBER),
            "small": handle.getValueState("small", NUMBER),
        }

    def write(states: dict[str, Any], key: Key) -> None:
        states["large"].update((1,))
        if key in last:
            states["small"].update((1,))

    opened: list[str] = []
    open_verified = LocalStorage.open_verified

    def counted(self: LocalStorage, reference: Any) -> Any:
        opened.append(reference.path)
        return open_verified(self, reference)

    made = MadeSavepoint(tmp_path, NAMES, [(str(number),) for number in range(300)])
    last = [keys[-1] for keys in made.keys]  # late in stored order
    made.epoch(init, write)
    path = made.save("s", canonical=canonical)
    made.close()
    monkeypatch.setattr(canonical_file, "_READ_ENTRIES", 10)
    monkeypatch.setattr(LocalStorage, "open_verified", counted)
    with ckpt.location(path).state() as snapshot:
        opened.clear()
        whole = sample_of(snapshot, UID, "small", None)
        assert (whole.rows, whole.is_whole, len(opened)) == (2, True, 2)
        seconds = iter(range(1000))
        monkeypatch.setattr(sampled_state.time, "monotonic", lambda: next(seconds))
        # Each look at the clock is a second later. A segment is read in one part.
        monkeypatch.setattr(sampled_state, "MOST_SECONDS", 3 if canonical else 0)
        opened.clear()
        ended = sample_of(snapshot, UID, "small", None)
    assert (ended.rows, ended.is_whole) == (0, False)
    assert len(opened) == 1, "no other subtask is read after the time"


def test_keys_are_not_looked_up_in_the_older_snapshot_after_the_time(
    savepoint: MadeSavepoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint.epoch(
        lambda handle: {"visits": handle.getListState("visits", NUMBER)},
        lambda states, _: states["visits"].put([(1,), (2,)]),
    )
    path = savepoint.save("s", canonical=True)
    with ckpt.location(path).state() as newer, ckpt.location(path).state() as older:
        found = sample_of(newer, UID, "visits", older).heaviest
        assert [each.rows_before for each in found] == [2] * 5
        heaviest = sampled_state._heaviest

        def late(*arguments: Any) -> Any:
            monkeypatch.setattr(sampled_state, "MOST_SECONDS", -1)
            return heaviest(*arguments)

        monkeypatch.setattr(sampled_state, "_heaviest", late)
        found = sample_of(newer, UID, "visits", older).heaviest
        assert [each.rows_before for each in found] == [None] * 5


def test_keys_of_one_row_are_not_looked_up_in_the_older_snapshot(
    savepoint: MadeSavepoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint.epoch(
        lambda handle: {"count": handle.getValueState("count", NUMBER)},
        lambda states, _: states["count"].update((1,)),
    )
    path = savepoint.save("s", canonical=True)
    with ckpt.location(path).state() as newer, ckpt.location(path).state() as older:
        monkeypatch.delattr(StateView, "rows_of")
        found = sample_of(newer, UID, "count", older).heaviest
    assert [(each.rows, each.rows_before) for each in found] == [(1, None)] * 5


def test_a_key_whose_entries_expired_has_not_grown(savepoint: MadeSavepoint) -> None:
    """The sample has expired entries, too: both snapshots are asked alike."""

    def init(handle: ProcessorHandle) -> dict[str, Any]:
        return {"visits": handle.getListState("visits", NUMBER, StateTtlConfig(HOUR_MS))}

    savepoint.epoch(init, lambda states, _: states["visits"].put([(1,), (2,), (3,)]))
    savepoint.time_ms += 2 * HOUR_MS
    path = savepoint.save("s", canonical=True)
    with ckpt.location(path).state() as newer, ckpt.location(path).state() as older:
        found = sample_of(newer, UID, "visits", older).heaviest
    assert [(each.rows, each.rows_before) for each in found] == [(3, 3)] * 5


NULLABLE = T.StructType().add("name", "string").add("tags", T.ArrayType(T.StringType()))


@pytest.mark.parametrize("schema", [NAMES, NULLABLE], ids=["flat", "nested"])
def test_a_null_in_a_key_is_not_its_text(tmp_path: Path, schema: T.StructType) -> None:
    rest = (None,) * (len(schema) - 1)
    keys: list[Key] = [(None, *rest), ("None", *rest), ("null", *rest), ("", *rest)]
    made = MadeSavepoint(tmp_path, schema, keys)
    made.epoch(
        lambda handle: {"visits": handle.getListState("visits", NUMBER)},
        lambda states, key: states["visits"].put([(each,) for each in range(2 + keys.index(key))]),
    )
    path = made.save("s", canonical=True)
    made.close()
    with ckpt.location(path).state() as newer, ckpt.location(path).state() as older:
        sample = sample_of(newer, UID, "visits", older)
        view = newer.state(UID, "visits")
        found = {each.text: entries_of_key(view, each.text)[1] for each in sample.heaviest}
    assert found == {key: 2 + number for number, key in enumerate(keys)}
    grown = {each.text: each.rows_before for each in sample.heaviest}
    assert grown == (found if schema is NAMES else dict.fromkeys(found))


def test_the_page_of_states_shows_and_finds_a_null(tmp_path: Path) -> None:
    keys: list[Key] = [(None,), ("None",), ("null",)]
    made = MadeSavepoint(tmp_path / "made", NAMES, keys)
    made.epoch(
        lambda handle: {"of": handle.getListState("of", NAMES)},
        lambda states, key: states["of"].put([key, (f"of {key[0]!r}",)]),
    )
    savepoint = LocalStorage(Path(made.save("s", canonical=True)))
    made.close()
    root = LocalStorage(tmp_path / "all")
    checkpoints = root.child("location/pyspark_ckpt")
    metadata = msgspec.structs.replace(
        read_metadata(savepoint), kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, root=".."
    )
    shutil.copytree(savepoint.root / "shared", checkpoints.root / "shared")
    CompletedCheckpoints(checkpoints).add(1, metadata)
    client = make_app(root).test_client()
    address = f"/q/{key_of(checkpoints.url)}/state"

    def page(asked: str) -> str:
        answer = client.get(f"{address}{asked}", base_url="http://127.0.0.1:8270")
        assert answer.status_code == 200
        return answer.text

    null = '<i title="no value">null</i>'
    heaviest = page("").partition('class="heaviest"')[2].partition("</table>")[0]
    shown = re.findall(r"<tr><td>(.*?)</td>", heaviest)
    assert sorted(shown) == sorted([null, "None", "null"])
    for text, asked in ((null, "key=&null=0"), ("None", "key=None"), ("null", "key=null")):
        found = page(f"?operator={UID}&state=of&{asked}")
        assert f"Entries of key {text} in of" in found
        rows = found.partition('id="entries"')[2].partition("</table>")[0]
        key = None if text == null else text
        assert re.findall(r"<td>(.*?)</td>", rows) == [
            text, "0", text, text, "1", html.escape(f"of {key!r}").replace("&#x27;", "&#39;"),
        ]  # fmt: skip
        (box,) = re.findall('<input type="checkbox" name="null" value="0"(.*?)>', found)
        assert ("checked" in box) == (text == null)
