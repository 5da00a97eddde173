"""What a bundle leaves out, and what it keeps."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import pytest

from pyspark_ckpt.console.data import bundle
from pyspark_ckpt.console.data.bundle import unpack_bundle, without_keys, write_bundle
from pyspark_ckpt.console.data.places import find_places
from pyspark_ckpt.console.data.queries import RunState, summary_of
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import store_note_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.history.run_log import RecordedRuns, RunLog
from pyspark_ckpt.history.run_record import (
    RUNS,
    CheckpointRecord,
    OperatorRecord,
    RunEnded,
    RunNote,
    RunStarted,
    SettingInForce,
    SlowKeyRecord,
    decode_run_record,
    encode_run_record,
    run_record_name,
)
from pyspark_ckpt.storage.open import LocalStorage

LOCAL = "http://127.0.0.1:8270"


def bundled(root: LocalStorage, directory: Path) -> LocalStorage:
    """Return what a bundle of all that is below a directory was unpacked into."""
    write_bundle(root, find_places(root), directory / "bundle")
    unpack_bundle(str(directory / "bundle"), directory / "unpacked")
    return LocalStorage(directory / "unpacked")


def note(*keys: SlowKeyRecord) -> RunNote:
    operators = (OperatorRecord(uid="op", rows=7, slow_keys=keys),)
    checkpoint = CheckpointRecord(
        checkpoint_id=1, epoch=2, triggered_at_ms=3, duration_ms=4, size_bytes=5,
        operators=operators,
    )  # fmt: skip
    return RunNote(run_id="r", at_ms=1, checkpoints=(checkpoint,))


def test_the_keys_of_a_record_are_cut_out_and_nothing_else() -> None:
    stored = encode_run_record(note(SlowKeyRecord(key="secret", subtask=0, ms=9, share=0.5)))
    assert decode_run_record(without_keys(stored)) == note()
    ended = encode_run_record(RunEnded(run_id="r", at_ms=1, error="why"))
    assert without_keys(ended) == ended


def test_a_record_that_cannot_be_read_is_not_copied() -> None:
    assert without_keys(b'{"what": "note", "slow_keys": ["secret"]') == b"{}"


def test_who_made_a_query_is_kept_though_notes_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all/orders/pyspark_ckpt/shared").mkdir(parents=True)
    root = LocalStorage(tmp_path / "all")
    log = RunLog(root.child("orders/pyspark_ckpt"))
    for user in ("ann", "bob"):
        log.write(RunStarted(run_id=user, at_ms=1, query_id="q", started_by=user))
        for _ in range(5):
            log.write(note())
    monkeypatch.setattr(bundle, "NOTES_KEPT", 3)
    (place,) = find_places(bundled(root, tmp_path)).queries
    assert summary_of(place, 2).made_by == "ann"
    assert len(RecordedRuns(place.checkpoints).notes(100)) == 3


def test_the_last_run_is_that_of_the_query_though_it_has_run_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start is older than all notes that are kept."""
    monkeypatch.setattr(bundle, "NOTES_KEPT", 3)
    (tmp_path / "all/orders/pyspark_ckpt/shared").mkdir(parents=True)
    root = LocalStorage(tmp_path / "all")
    log = RunLog(root.child("orders/pyspark_ckpt"))
    log.write(RunStarted(run_id="a", at_ms=1, query_id="q", started_by="ann"))
    log.write(RunEnded(run_id="a", at_ms=2, error="an old bug"))
    settings = (SettingInForce("spark.ckpt.backend", "heap", "option"),)
    log.write(RunStarted(run_id="r", at_ms=3, query_id="q", started_by="bob", settings=settings))
    for _ in range(10):
        log.write(note())
    unpacked = bundled(root, tmp_path)
    (place,) = find_places(unpacked).queries
    run = summary_of(place, 4).run
    assert run.state is RunState.RUNNING
    assert run.started is not None
    assert run.started.started_by == "bob"
    page = make_app(unpacked).test_client().get(f"/q/{place.key}/settings", base_url=LOCAL).text
    assert "heap" in page


def test_a_query_is_shown_as_it_was_when_the_bundle_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all/orders/pyspark_ckpt/shared").mkdir(parents=True)
    root = LocalStorage(tmp_path / "all")
    log = RunLog(root.child("orders/pyspark_ckpt"))
    log.write(RunStarted(run_id="r", at_ms=1_000_000, query_id="q", query_name="orders"))
    monkeypatch.setattr(bundle, "now_ms", lambda: 1_005_000)  # long ago
    unpacked = bundled(root, tmp_path)
    page = make_app(unpacked, bundle="orders.bundle").test_client().get("/", base_url=LOCAL).text
    assert "as of 1970-01-01 00:16:45Z" in page
    assert ">running<" in page
    assert "5.0 s ago" in page


def test_a_bundle_that_does_not_say_when_it_was_made_can_be_opened(tmp_path: Path) -> None:
    """Version 0.1.0 had no bundles; those of the time before the next one had no time."""
    path = tmp_path / "bundle"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(bundle.INDEX_NAME, b'{"version":1,"root":"/x"}')
        started = RunStarted(run_id="r", at_ms=1_000_000, query_id="q", query_name="orders")
        name = f"queries/0/pyspark_ckpt/{RUNS}/{run_record_name(1, started)}"
        file.writestr(name, encode_run_record(started))
    unpack_bundle(str(path), tmp_path / "unpacked")
    app = make_app(LocalStorage(tmp_path / "unpacked"), bundle="old.bundle")
    assert ">no sign of life<" in app.test_client().get("/", base_url=LOCAL).text


@pytest.mark.parametrize(
    "name",
    [
        f"queries/0/pyspark_ckpt/{store_note_path(1)}",
        f"queries/0/{store_note_path(1)}",
        "queries/0/pyspark_ckpt/../_metadata",
        "/etc/passwd",
    ],
)
def test_a_bundle_with_the_address_of_a_server_is_refused(tmp_path: Path, name: str) -> None:
    """Whoever opens it would connect to the server, with a user's certificates."""
    path = tmp_path / "bundle.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(bundle.INDEX_NAME, b'{"version":1,"root":"/x"}')
        file.writestr(name, b'{"type":"etcd","quorum":"http://127.0.0.1:1","node":"/a"}')
    with pytest.raises(CorruptFileError, match="no name of a bundle"):
        unpack_bundle(str(path), tmp_path / "unpacked")
    assert not [each for each in (tmp_path / "unpacked").rglob("*") if each.is_file()]


def test_a_savepoint_of_any_name_is_in_the_bundle(
    tmp_path: Path, snapshot: CheckpointMetadata
) -> None:
    root = LocalStorage(tmp_path / "all")
    names = ["savepoint-3f2a10-0123456789ab", "savepoint-3f2a10-0123456789ab (before upgrade)"]
    for name in names:
        root.write(f"{name}/_metadata", [encode_metadata(snapshot)])
    write_bundle(root, find_places(root), tmp_path / "bundle")
    index = unpack_bundle(str(tmp_path / "bundle"), tmp_path / "unpacked")
    assert sorted(index.savepoints.values()) == sorted(root.url_of(name) for name in names)
    found = find_places(LocalStorage(tmp_path / "unpacked")).savepoints
    assert len(found) == 2


def test_a_file_that_says_it_has_gigabytes_of_a_small_bundle_gets_no_buffer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bundle.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(bundle.INDEX_NAME, b'{"version":1,"root":"/x","queries":{},"savepoints":{}}')
        file.writestr("0/_owner", b"x")
    said = bytearray(path.read_bytes())
    entry = said.rindex(b"PK\x01\x02")
    said[entry + 20 : entry + 24] = (1 << 30).to_bytes(4, "little")  # the compressed size
    path.write_bytes(said)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFileError, match="larger than the bundle"):
            unpack_bundle(str(path), tmp_path / "unpacked")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
