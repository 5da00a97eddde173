"""What a bundle leaves out, and what it keeps."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import pytest

from pyspark_ckpt.console.data import bundle
from pyspark_ckpt.console.data.bundle import unpack_bundle, without_keys, write_bundle
from pyspark_ckpt.console.data.places import find_places
from pyspark_ckpt.console.data.queries import summary_of
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import store_note_path
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.history.run_log import RunLog
from pyspark_ckpt.history.run_record import (
    CheckpointRecord,
    OperatorRecord,
    RunEnded,
    RunNote,
    RunStarted,
    SlowKeyRecord,
    decode_run_record,
    encode_run_record,
)
from pyspark_ckpt.storage.open import LocalStorage


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
    monkeypatch.setattr(bundle, "KEPT", 3)
    write_bundle(root, find_places(root), tmp_path / "bundle")
    unpack_bundle(str(tmp_path / "bundle"), tmp_path / "unpacked")
    (place,) = find_places(LocalStorage(tmp_path / "unpacked")).queries
    assert summary_of(place, 2).made_by == "ann"


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
