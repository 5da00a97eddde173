"""No table ends without a word: a page says how many there are of what it leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import types as T

import pyspark_ckpt as ckpt
from pyspark_ckpt.console.data import states as sampled_state
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.snapshots import FILES_SHOWN, savepoint_page
from pyspark_ckpt.console.data.states import (
    Growth,
    HeavyKey,
    KeyEntries,
    Sample,
    StatePage,
    StateSample,
    Trend,
    entries_of_key,
)
from pyspark_ckpt.console.html import pages
from pyspark_ckpt.formats.handle import Segment
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage
from tests.unit.console.made_operator import operator
from tests.unit.snapshot.made_savepoint import UID, Key, MadeSavepoint

SITE = pages.Site("/data")
HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def place(tmp_path: Path) -> QueryPlace:
    return QueryPlace("0" * 16, LocalStorage(tmp_path), None)


def state_page(
    samples: tuple[StateSample, ...] = (), entries: KeyEntries | None = None, **changes: object
) -> StatePage:
    fields = {
        "name": "q", "growth": Growth(()), "samples": samples, "states": len(samples), "grown": (),
        "slow": (), "timers": (), "older_name": None, "older_at_ms": None, "entries": entries,
        "problems": (), **changes,
    }  # fmt: skip
    return StatePage(**fields)  # type: ignore[arg-type]  # each has its type above


def test_the_entries_of_a_key_have_a_total_and_keep_the_form(place: QueryPlace) -> None:
    entries = KeyEntries(
        operator="op", state="list", key_columns=("user",), key=(HOSTILE,), columns=("user", "n"),
        rows=({"user": "ada", "n": 1},), total=2160,
    )  # fmt: skip
    text = pages.state_page_html(SITE, place, state_page(entries=entries))
    assert "The first 1 of 2,160 entries." in text
    (form,) = re.findall("<form.*?</form>", text, re.DOTALL)
    assert 'name="operator" value="op"' in form
    assert 'name="state" value="list"' in form
    assert "&#34;&gt;&lt;script&gt;" in form
    assert "<script" not in text


def test_all_entries_of_a_key_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Key] = [("ada",)]
    made = MadeSavepoint(tmp_path, T.StructType().add("user", "string"), keys)
    number = T.StructType().add("n", "long")
    made.epoch(
        lambda handle: {"list": handle.getListState("list", number)},
        lambda states, _: states["list"].put([(each,) for each in range(5)]),
    )
    path = made.save("s", canonical=True)
    made.close()
    monkeypatch.setattr(sampled_state, "ENTRIES_SHOWN", 2)
    with ckpt.location(path).state() as snapshot:
        table, total = entries_of_key(snapshot.state(UID, "list"), ["ada"])
    assert (table.num_rows, total) == (2, 5)


def test_tables_of_keys_and_samples_have_totals(place: QueryPlace) -> None:
    heavy = (HeavyKey(("ada",), 3, 30), HeavyKey(("bob",), 1, 10))
    sample = Sample(
        rows=9, size_bytes=90, expired=None, is_whole=False, key_columns=("k",), heaviest=heavy,
        by_rows=heavy[:1], keys=42,
    )  # fmt: skip
    page = state_page((StateSample("op", "list", sample),), states=9)
    text = pages.state_page_html(SITE, place, page)
    assert "The first 2 of 42 keys of the sample." in text
    assert "The first 1 of 42 keys of the sample." in text
    assert "Samples of the first 1 of 9 states." in text


def test_the_files_of_a_snapshot_have_a_total(
    snapshot: CheckpointMetadata, place: QueryPlace
) -> None:
    many = FILES_SHOWN + 7
    (handle,) = operator(9, parallelism=1).handles
    segments = tuple(
        Segment(f"{n}-x", n, 1, 10, file=FileReference(f"taskowned/{n}.chg", 10, "0" * 64))
        for n in range(many)
    )
    with_files = msgspec.structs.replace(
        operator(9, parallelism=1), handles=(msgspec.structs.replace(handle, segments=segments),)
    )
    metadata = msgspec.structs.replace(
        snapshot, operators=(with_files,), source_logs=(), offsets_entry=""
    )
    page = savepoint_page(metadata)
    assert (len(page.files), page.file_count) == (FILES_SHOWN, many)
    text = pages.checkpoint_page_html(SITE, place, 3, page)
    assert f"These are the largest {FILES_SHOWN} of {many} files." in text


def test_only_material_growth_is_bold(place: QueryPlace) -> None:
    fast, slow = (
        Trend(f"op / {name}", tuple((n, 1000 + step * n) for n in range(8)))
        for name, step in (("fast", 500), ("slow", 20))
    )
    text = pages.state_page_html(SITE, place, state_page(growth=Growth((fast, slow))))
    assert re.findall('<b class="marked">([^<]*)</b>', text) == [
        "yes, by about 500 B in an epoch: 1.80 times the older size"
    ]
    assert "yes, but little: by about 20 B in an epoch: 1.08 times the older size" in text
