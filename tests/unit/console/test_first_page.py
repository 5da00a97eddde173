"""The first page points to the query that is skewed, grows, or leaves unused files."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import msgspec
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.console.data import glances
from pyspark_ckpt.console.data.places import QueryPlace, find_places, key_of
from pyspark_ckpt.console.data.queries import QuerySummary, summary_of
from pyspark_ckpt.console.data.snapshots import SKEWED, most_skewed
from pyspark_ckpt.console.data.states import Growth, Trend, growth_of
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.places import LEVELS, savepoint_entries
from pyspark_ckpt.history.run_log import (
    CheckpointRecord,
    EpochRecord,
    OperatorEpoch,
    OperatorRecord,
    RunEnded,
    RunLog,
    RunNote,
    RunStarted,
    SlowKeyRecord,
    StateRecord,
)
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.console.made_operator import operator

LOCAL = "http://127.0.0.1:8270"
STRAY = "shared/source-0-0-0123456789abcdef.log"


def record(epoch: int, **sizes: int) -> CheckpointRecord:
    states = tuple(
        StateRecord(name=name, keys=1, entries=1, size_bytes=size) for name, size in sizes.items()
    )
    return CheckpointRecord(
        checkpoint_id=epoch, epoch=epoch, triggered_at_ms=epoch, duration_ms=1, size_bytes=1,
        operators=(OperatorRecord(uid="op", states=states),),
    )  # fmt: skip


@pytest.fixture
def all_queries(tmp_path: Path, snapshot: CheckpointMetadata) -> LocalStorage:
    """A balanced query, and a skewed one whose state `list` grows, and that left a file."""
    for name, sizes in (("even", (50, 50)), ("odd", (90, 10))):
        storage = LocalStorage(tmp_path / "all" / name / "pyspark_ckpt")
        metadata = msgspec.structs.replace(
            snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, root="..", query_id=name,
            query_name=name, operators=(operator(*sizes, parallelism=2),), source_logs=(),
            offsets_entry="",
        )  # fmt: skip
        CompletedCheckpoints(storage).add(1, metadata)
        log = RunLog(storage)
        log.write(RunStarted(run_id="r", at_ms=1, query_id=name, query_name=name))
        grown = 100 if name == "odd" else 0
        records = tuple(record(n, list=1000 + grown * n, value=500 + n) for n in range(8))
        log.write(RunNote(run_id="r", at_ms=2, checkpoints=records))
    log.write(RunEnded(run_id="r", at_ms=3, error=ERROR, error_kind="ProcessorError"))
    stray = tmp_path / "all" / "odd" / "pyspark_ckpt" / STRAY
    stray.parent.mkdir()
    stray.write_bytes(b"x" * 12345)
    os.utime(stray, (1, 1))
    return LocalStorage(tmp_path / "all")


ERROR = """operator 'op', key ('<b>',): Shop raised ValueError: a refund of -500
  File "/jobs/shop.py", line 16, in handleInputRows
    raise ValueError(f"a refund of {row.v}")"""


def row_of(page: str, name: str) -> str:
    (row,) = [each for each in page.split("<tr>") if f'/">{name}</a>' in each]
    return row


def place(root: LocalStorage, name: str) -> QueryPlace:
    found = find_places(root).query(key_of(root.url_of(f"{name}/pyspark_ckpt")))
    assert found is not None
    return found


def summaries(root: LocalStorage) -> list[QuerySummary]:
    return [summary_of(place(root, name), 9) for name in ("even", "odd")]


def test_what_is_wrong_is_marked_and_leads_to_its_page(all_queries: LocalStorage) -> None:
    client = make_app(all_queries).test_client()
    page = client.get("/", base_url=LOCAL).text
    even, odd = (row_of(page, name) for name in ("even", "odd"))
    assert "marked" not in even
    assert "1.00: subtask 1" in even
    assert ">no</td>" in even
    key = place(all_queries, "odd").key
    marked = dict(re.findall(r"<a ([^>]*marked[^>]*)>([^<]*)</a>", odd))
    texts = {re.findall('href="([^"]*)"', tag)[0]: text for tag, text in marked.items()}
    assert texts == {
        f"/q/{key}/chk/1/#operator-0": "1.80: subtask 0",
        f"/q/{key}/state#growth": "op / list",
        f"/q/{key}/files": "1",
    }
    assert "100 B/epoch" in odd
    assert 'id="operator-0"' in client.get(f"/q/{key}/chk/1/", base_url=LOCAL).text
    assert 'id="growth"' in client.get(f"/q/{key}/state", base_url=LOCAL).text


def test_a_failure_shows_its_message_and_the_line(all_queries: LocalStorage) -> None:
    page = make_app(all_queries).test_client().get("/", base_url=LOCAL).text
    assert "a refund of -500" in page
    assert "/jobs/shop.py" in page
    assert "<b>&#39;" not in page
    assert "(&#39;&lt;b&gt;&#39;,)" in page


def test_a_file_that_nothing_needs_has_its_size_and_age(all_queries: LocalStorage) -> None:
    client = make_app(all_queries).test_client()
    odd, even = (
        client.get(f"/q/{place(all_queries, name).key}/files", base_url=LOCAL).text
        for name in ("odd", "even")
    )
    assert "<b>1 file that nothing needs, 12.1 KiB.</b>" in odd
    assert re.search(rf"{STRAY}</code></td><td class=\"n\">12.1 KiB</td><td>[0-9.]+ days ago", odd)
    assert "A stopped query keeps it" in odd
    assert "<b>Nothing is leaking.</b>" in even
    assert "unneeded" not in even


def test_looks_have_bounds(all_queries: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look = glances.Glances._look

    def counted(self: glances.Glances, place: QueryPlace) -> glances.Look:
        looked.append(place.path.rpartition("/")[2])
        return look(self, place)

    monkeypatch.setattr(glances.Glances, "_look", counted)
    found = summaries(all_queries)
    one = glances.Glances(has_data=True)
    monkeypatch.setattr(glances, "PAGE_MS", -1)
    assert all(each.look is None for each in one.of(found).values())
    assert looked == [], "a page without time looks at nothing"
    monkeypatch.setattr(glances, "PAGE_MS", 60_000)
    one.of(found[:1])
    one.of(found)
    one.of(found)
    assert looked == ["even", "odd"], "each is looked at once in half a minute"
    one.of(found[:1])
    one.of(found)
    assert looked == ["even", "odd", "odd"], "what is not shown is forgotten"


@pytest.mark.parametrize(("took_ms", "holds_ms"), [(1, 30_000), (2000, 200_000)])
def test_a_look_that_took_long_holds_long(
    all_queries: LocalStorage, monkeypatch: pytest.MonkeyPatch, took_ms: int, holds_ms: int
) -> None:
    now = [1_000]
    looked: list[str] = []

    def look(self: glances.Glances, place: QueryPlace) -> glances.Look:
        looked.append(place.path.rpartition("/")[2])
        now[0] += took_ms
        return glances.Look(Growth(()), None)

    monkeypatch.setattr(glances, "monotonic_ms", lambda: now[0])
    monkeypatch.setattr(glances.Glances, "_look", look)
    one, found = glances.Glances(has_data=True), summaries(all_queries)[:1]
    one.of(found)
    began_ms = now[0] - took_ms
    now[0] = began_ms + holds_ms - 1
    one.of(found)
    assert looked == ["even"]
    now[0] = began_ms + holds_ms
    one.of(found)
    assert looked == ["even", "even"]


def test_the_next_page_looks_at_those_that_were_never_looked_at(
    all_queries: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000]
    looked: list[str] = []

    def look(self: glances.Glances, place: QueryPlace) -> glances.Look:
        looked.append(place.path.rpartition("/")[2])
        now[0] += glances.PAGE_MS + 1
        return glances.Look(Growth(()), None)

    monkeypatch.setattr(glances, "monotonic_ms", lambda: now[0])
    monkeypatch.setattr(glances, "HOLDS_TIMES", 0)
    monkeypatch.setattr(glances, "HOLDS_MS", 0)
    monkeypatch.setattr(glances.Glances, "_look", look)
    one, found = glances.Glances(has_data=True), summaries(all_queries)
    first = one.of(found)
    assert [each.look is None for each in first.values()] == [False, True]
    one.of(found)
    one.of(found)
    assert looked == ["even", "odd", "even"]


def test_a_page_does_not_wait_for_the_looks_of_another(
    all_queries: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, may_end = threading.Event(), threading.Event()
    look = glances.Glances._look

    def slow(self: glances.Glances, place: QueryPlace) -> glances.Look:
        looks.set()
        assert may_end.wait(60)
        return look(self, place)

    monkeypatch.setattr(glances.Glances, "_look", slow)
    one, found = glances.Glances(has_data=True), summaries(all_queries)
    other = threading.Thread(target=one.of, args=(found,))
    other.start()
    try:
        assert looks.wait(60)
        assert all(each.look is None for each in one.of(found).values())
    finally:
        may_end.set()
        other.join(60)
    assert all(each.look is not None for each in one.of(found).values())


def test_files_beside_many_checkpoints_are_not_judged_on_the_first_page(
    all_queries: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glances, "CHECKPOINTS_READ", 0)
    found = glances.Glances(has_data=True).of(summaries(all_queries))
    assert [each.unneeded for each in found.values()] == [None, None]
    page = make_app(all_queries).test_client().get("/", base_url=LOCAL).text
    assert 'title="not looked at here: its page says more">?</a>' in row_of(page, "odd")


def test_only_material_growth_counts_and_the_fastest_comes_first() -> None:
    records = [record(n, slow=1000 + 20 * n, fast=10_000 + 1000 * n, same=5) for n in range(10)]
    growth = growth_of(records)
    assert [each.name for each in growth.trends] == ["op / fast", "op / slow", "op / same"]
    assert growth.fastest is growth.trends[0]
    assert [growth.is_material(each) for each in growth.trends] == [True, False, False]
    assert growth.trends[0].ratio == pytest.approx(19 / 14)
    few = Growth((Trend("op / new", ((0, 1), (1, 9))),))
    assert (few.is_known, few.fastest, few.trends[0].ratio) == (False, None, None)


def test_a_rollback_that_repeats_an_epoch_does_not_divide_by_nothing() -> None:
    sizes = ((5, 1), (6, 2), (9, 3), (9, 50), (8, 4), (7, 5))
    assert Trend("op / list", sizes).bytes_per_epoch == 47


def test_the_worst_operator_of_a_checkpoint_counts(snapshot: CheckpointMetadata) -> None:
    even = operator(50, 50, parallelism=2)
    odd = msgspec.structs.replace(operator(90, 10, parallelism=2), operator_id=1)
    metadata = msgspec.structs.replace(snapshot, operators=(even, odd))
    worst = most_skewed(metadata)
    assert worst is not None
    assert (worst.operator.operator_id, worst.is_skewed) == (1, True)
    assert most_skewed(msgspec.structs.replace(snapshot, operators=())) is None
    assert 1 < SKEWED < 2, "two subtasks can be skewed by 2 at most"


def test_names_of_states_and_keys_are_escaped(all_queries: LocalStorage) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    keys = (SlowKeyRecord(key=hostile, subtask=0, ms=900, share=1.0),)
    records = tuple(record(n, **{hostile: 1000 + 900 * n}) for n in range(8))
    operators = (
        *records[-1].operators,
        OperatorRecord(uid=hostile, states=records[-1].operators[0].states, slow_keys=keys),
    )
    records = (*records[:-1], msgspec.structs.replace(records[-1], operators=operators))
    epochs = tuple(
        EpochRecord(
            epoch=n, began_at_ms=n, duration_ms=1000, rows=1, phases_ms={"addBatch": 1000}
        )
        for n in (6, 7)
    )  # fmt: skip
    done = OperatorEpoch(
        uid=hostile, epoch=7, began_ms=0, open_ms=0, read_ms=0, user_ms=1000, write_ms=0,
        barrier_ms=0,
    )  # fmt: skip
    RunLog(place(all_queries, "even").checkpoints).write(
        RunNote(run_id="r", at_ms=3, epochs=epochs, operator_epochs=(done,), checkpoints=records)
    )
    client = make_app(all_queries).test_client()
    key = place(all_queries, "even").key
    for address in ("/", f"/q/{key}/", f"/q/{key}/state"):
        text = client.get(address, base_url=LOCAL).text
        assert "<img" not in text, address
        assert "&lt;img src=x onerror=alert(1)&gt;" in text, address


@pytest.mark.parametrize("kind", ["outside", "loop", "name"])
def test_one_strange_directory_hides_no_query(
    all_queries: LocalStorage, tmp_path: Path, kind: str
) -> None:
    strange = tmp_path / "all" / "strange"
    if kind == "outside":
        strange.symlink_to(tmp_path)
    elif kind == "loop":
        strange.symlink_to(strange)
    else:
        name = os.fsdecode(b"caf\xe9")  # no UTF-8
        (tmp_path / "all" / name / "pyspark_ckpt" / "shared").mkdir(parents=True)
    page = make_app(all_queries).test_client().get("/", headers={"Host": "localhost"})
    assert page.status_code == 200
    for name in ("even", "odd"):
        assert f"all/{name}" in page.text
    assert ("leaves" in page.text) == (kind != "name")
    found = savepoint_entries(all_queries, LEVELS)
    assert [each.status for each in found] == []
    assert set(ckpt.location(str(tmp_path / "all")).lineage()["query_id"]) == {"even", "odd"}
