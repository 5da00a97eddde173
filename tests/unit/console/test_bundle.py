"""What a bundle leaves out, and what it keeps."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.cli.main import main
from pyspark_ckpt.console.data import bundle
from pyspark_ckpt.console.data.bundle import unpack_bundle, without_keys, write_bundle
from pyspark_ckpt.console.data.places import find_places
from pyspark_ckpt.console.data.queries import summary_of
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import store_note_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.history.run_log import (
    CheckpointRecord,
    OperatorRecord,
    RecordedRuns,
    RunEnded,
    RunLog,
    RunNote,
    RunStarted,
    RunState,
    SettingInForce,
    SlowKeyRecord,
    decode_run_record,
    encode_run_record,
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
    """Whoever opens it would connect to the server."""
    path = tmp_path / "bundle.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(bundle.INDEX_NAME, b'{"version":1,"root":"/x","made_at_ms":1}')
        file.writestr(name, b'{"type":"zookeeper","quorum":"127.0.0.1:1","node":"/a"}')
    with pytest.raises(CorruptFileError, match="not a name of a bundle"):
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
        file.writestr(bundle.INDEX_NAME, b'{"version":1,"root":"/x","made_at_ms":1}')
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


def queries_with_notes(root: LocalStorage, names: str, notes: int) -> None:
    for name in names:
        storage = root.child(f"{name}/pyspark_ckpt")
        log = RunLog(storage)
        log.write(RunStarted(run_id="a", at_ms=1, query_id=name, started_by="ann"))
        log.write(RunEnded(run_id="a", at_ms=2))
        log.write(RunStarted(run_id="b", at_ms=3, query_id=name, started_by="bob"))
        for number in range(notes):
            log.write(msgspec.structs.replace(note(), run_id="b", at_ms=4 + number))


def test_a_file_of_another_name_is_left_out_and_counted(tmp_path: Path) -> None:
    root = LocalStorage(tmp_path / "all")
    queries_with_notes(root, "q", 2)
    root.write("q/pyspark_ckpt/history/000 (1).json", [b"{}"])
    made = write_bundle(root, find_places(root), tmp_path / "bundle")
    assert (made.unnamed, made.cut) == (1, ())
    unpack_bundle(str(tmp_path / "bundle"), tmp_path / "unpacked")
    (place,) = find_places(LocalStorage(tmp_path / "unpacked")).queries
    assert len(RecordedRuns(place.checkpoints).notes(10)) == 2


def test_a_bundle_of_many_records_has_the_newest_of_each_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = LocalStorage(tmp_path / "all")
    queries_with_notes(root, "pqr", 100)
    monkeypatch.setattr(bundle, "MOST_FILES", 61)
    made = write_bundle(root, find_places(root), tmp_path / "bundle")
    assert made.files <= 61
    assert made.cut == tuple(root.url_of(name) for name in "pqr")
    unpack_bundle(str(tmp_path / "bundle"), tmp_path / "unpacked")
    for place in find_places(LocalStorage(tmp_path / "unpacked")).queries:
        summary = summary_of(place, 200)
        assert summary.run.started is not None
        assert (summary.made_by, summary.run.started.started_by) == ("ann", "bob")
        notes = RecordedRuns(place.checkpoints).notes(100)
        assert len(notes) >= 10
        assert [each.at_ms for each in notes] == list(range(104 - len(notes), 104))


def test_a_bundle_of_large_records_has_the_newest_of_each_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = LocalStorage(tmp_path / "all")
    queries_with_notes(root, "pqr", 100)
    monkeypatch.setattr(bundle, "MOST_BYTES", 20_000)
    made = write_bundle(root, find_places(root), tmp_path / "bundle")
    assert made.cut == tuple(root.url_of(name) for name in "pqr")
    unpack_bundle(str(tmp_path / "bundle"), tmp_path / "unpacked")
    for place in find_places(LocalStorage(tmp_path / "unpacked")).queries:
        assert RecordedRuns(place.checkpoints).notes(1)[-1].at_ms == 103


def test_a_command_says_what_a_bundle_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = LocalStorage(tmp_path / "all")
    queries_with_notes(root, "pq", 100)
    root.write("q/pyspark_ckpt/history/000 (1).json", [b"{}"])
    monkeypatch.setattr(bundle, "MOST_FILES", 61)
    assert main(["bundle", root.url, "--output", str(tmp_path / "bundle")]) == 0
    printed = capsys.readouterr().out
    assert "older records of 2 of them are left out" in printed
    assert "left out: 1 files whose names" in printed


WITH_LITTLE_ROOM = """
import resource, sys
from pyspark_ckpt.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_is_full_leaves_no_part_of_a_bundle(tmp_path: Path) -> None:
    root = LocalStorage(tmp_path / "all")
    queries_with_notes(root, "q", 20)
    (tmp_path / "to").mkdir()
    command = ["bundle", root.url, "--output", str(tmp_path / "to" / "bundle")]
    failed = subprocess.run(
        [sys.executable, "-c", WITH_LITTLE_ROOM, *command], capture_output=True, check=False
    )
    assert failed.returncode == 1
    assert b"File too large" in failed.stderr
    assert b"Traceback" not in failed.stderr
    assert not list((tmp_path / "to").iterdir())
    assert main(command) == 0
    assert [each.name for each in (tmp_path / "to").iterdir()] == ["bundle"]


def test_a_bundle_in_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    root = LocalStorage(tmp_path / "all")
    queries_with_notes(root, "q", 1)
    with pytest.raises(FileNotFoundError, match=r"no such directory: .*missing"):
        write_bundle(root, find_places(root), tmp_path / "missing" / "bundle")


def test_an_unreadable_query_leaves_the_others_in_the_bundle(
    tmp_path: Path, snapshot: CheckpointMetadata
) -> None:
    root = LocalStorage(tmp_path / "all")
    queries_with_notes(root, "pq", 1)
    (tmp_path / "all/p/pyspark_ckpt/chk-1/_metadata").mkdir(parents=True)
    (tmp_path / "all/p/pyspark_ckpt/history/1.json").mkdir()
    root.write("savepoint-3f2a10-0123456789ab/_metadata", [encode_metadata(snapshot)])
    found = find_places(bundled(root, tmp_path))
    assert len(found.queries) == 2
    assert len(found.savepoints) == 1


@pytest.mark.parametrize(
    ("name", "why"), [("taken", "exists"), (".", "is a directory"), ("no/file", "no directory")]
)
def test_a_bundle_that_cannot_be_written_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert main(["bundle", str(tmp_path), "--output", str(tmp_path / name)]) == 1
    err = capsys.readouterr().err
    assert why in err
    assert "give" in err
    assert "Errno" not in err
    assert (tmp_path / "taken").read_text() == "mine"
