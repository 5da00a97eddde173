"""The parsers of stored bytes, each with whole golden files to start from."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_ckpt.console.data.bundle import INDEX_NAME, BundleIndex, unpack_bundle
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.snapshots import KEPT_FILES_NAME, KeptFiles, bundled_kept_files
from pyspark_ckpt.formats.canonical_file import decode_canonical
from pyspark_ckpt.formats.change_file import decode_changes
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle, read_initial_handle
from pyspark_ckpt.formats.in_progress import InProgress, encode_in_progress, read_in_progress
from pyspark_ckpt.formats.layout import DRAIN_MARKER, DRAINED_COMMIT, new_snapshot_id
from pyspark_ckpt.formats.location_files import RolledBack, read_rolled_back, write_rolled_back
from pyspark_ckpt.formats.metadata_file import decode_metadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.formats.requests import Action, Answer, Request, RequestFiles
from pyspark_ckpt.history.log import EntryKind, EntryStatus, HistoryEntry, HistoryLog
from pyspark_ckpt.history.run_log import RunEnded, RunNote, RunStarted, decode_run_record
from pyspark_ckpt.history.run_log import encode_run_record as encode_run
from pyspark_ckpt.operator.capture.capture_file import (
    CapturedClock,
    CapturedColumns,
    CapturedEpoch,
    CapturedProgram,
    Released,
    SectionName,
    decode_parts,
    encode_part,
)
from pyspark_ckpt.operator.capture.orders import CaptureFiles
from pyspark_ckpt.operator.descriptor import CaptureOrder
from pyspark_ckpt.operator.durable.local_snapshots import LocalSnapshots, SnapshotNote
from pyspark_ckpt.operator.quarantine.releases import BEFORE_ALL, Release, ReleaseFiles
from pyspark_ckpt.query.stopping.drain import LastEpochs
from pyspark_ckpt.restore.location.swap import begun_swap
from pyspark_ckpt.restore.spark_files import _checked_entries, checked_content
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.state_files import needed_files, operator_name, with_operator_id
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.open import read_store_note
from pyspark_ckpt.stores.owner import check_owner
from pyspark_ckpt.stores.place import recorded_place
from pyspark_ckpt.stores.reader_pins import encode_pin, pin_name, pinned_files
from tests.faults.leases import ALONE
from tests.golden import archives

GOLDEN = Path(__file__).parents[1] / "golden" / "1"
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_HEADER = struct.Struct(">8sIQ32s")
_CAPTURE = struct.Struct(">8sII")
_SNAPSHOT = new_snapshot_id()
_STORES = {
    "operatorInfo": {"operatorId": 0, "operatorName": "x"},
    "stateStoreInfo": [{"stateSchemaFilePaths": ["file:/x/state/0/_stateSchema/default/0_a-1"]}],
}
_ID = f"{1:015}-{'0' * 16}"
_DRAINING = b'{"epoch":3,"drained_at_ms":4,"watermark_ms":5,"triggered_at_ms":6,"token":"0f"}'


class Parser(NamedTuple):
    """A parser, whole inputs, and what puts the right checksums into a changed input."""

    parse: Callable[[bytes], object]
    samples: Sequence[bytes]
    seal: Callable[[bytes], bytes] = bytes


def _files(pattern: str, most: int = 6) -> list[bytes]:
    roots = (GOLDEN, archives.newest("heap").parent, archives.newest("rocksdb").parent)
    files = [path for root in roots for path in root.glob(pattern)]
    found = sorted(files, key=lambda path: (path.stat().st_size, path.name))
    return [path.read_bytes() for path in found[:most]]


def _at(name: str, parse: Callable[[LocalStorage], object]) -> Callable[[bytes], object]:
    """Return a parser of one file in a directory."""

    def parse_file(data: bytes) -> object:
        with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
            path = Path(directory) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            return parse(LocalStorage(Path(directory)))

    return parse_file


def _written(name: str, write: Callable[[LocalStorage], object]) -> bytes:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
        write(LocalStorage(Path(directory)))
        return (Path(directory) / name).read_bytes()


def _archive() -> bytes:
    """Return an archive as Spark's RocksDB state store writes it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles":[],"logFiles":[],"numKeys":1}')
        archive.writestr("CURRENT", "MANIFEST-000005\n")
    return content.getvalue()


def _sealed_metadata(data: bytes) -> bytes:
    if len(data) < _HEADER.size:
        return data
    magic, version, _, _ = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    return _HEADER.pack(magic, version, len(body), hashlib.sha256(body).digest()) + body


def _sealed_changes(data: bytes) -> bytes:
    """Give each frame of a change file the checksum of what is in it now."""
    from pyspark_ckpt.formats import change_file

    head = change_file._FRAME_HEADER
    sealed, at = bytearray(data), len(change_file.MAGIC)
    while at + head.size <= len(data):
        length, check = head.unpack_from(data, at)
        body = data[at + head.size : at + head.size + length]
        if length == 0:
            break
        head.pack_into(sealed, at, length, zlib.crc32(body) if len(body) == length else check)
        at += head.size + length
    return bytes(sealed)


def _read_initial(storage: LocalStorage) -> object:
    data = storage.read("shared/initial")
    reference = FileReference("shared/initial", len(data), hashlib.sha256(data).hexdigest())
    return read_initial_handle(storage, reference, "op", 0)


def _read_log(storage: LocalStorage) -> object:
    log = SparkLog(storage)
    return log.offsets_entry(3), log.offsets_entry(3).in_order, log.begun_epoch()


def _read_commit(storage: LocalStorage) -> object:
    return SparkLog(storage).watermark_ms(3)


def _capture() -> bytes:
    handle = Handle(
        query_id="q", uid="op", subtask=0, parallelism=2, max_parallelism=128, epoch=1,
        key_schema='{"fields":[],"type":"struct"}',
    )  # fmt: skip
    columns = CapturedColumns(schema=handle.key_schema, keys=(), time_zone="UTC")
    program = CapturedProgram(
        processor="m.P",
        code_sha256="00",
        mode="rows",
        columns=columns,
        output_schema=handle.key_schema,
    )
    clock = CapturedClock(mode=TimeMode.NONE, processing_time_ms=1, watermark_ms=None)
    epoch = CapturedEpoch(
        epoch=1, timeline=0, run="r", run_started_ms=1, written_at_ms=2, handle=handle,
        clock=clock, program=program, released=Released(keys=("00ff",)),
    )  # fmt: skip
    return b"".join(encode_part(epoch, {SectionName.BEFORE: b"1234", SectionName.ROWS: b"56"}))


def _sealed_capture(data: bytes) -> bytes:
    """Give the header of a capture the checksum of what is in it now."""
    if len(data) < _CAPTURE.size:
        return data
    magic, length, _ = _CAPTURE.unpack_from(data)
    header = data[_CAPTURE.size : _CAPTURE.size + length]
    return _CAPTURE.pack(magic, length, zlib.crc32(header)) + data[_CAPTURE.size :]


class _Unfenced:
    """The lease of a program that is alone."""

    def check(self) -> None:
        """Never fail."""


class _DrainNote(LastEpochs):
    """Reads the note of a drain, and runs nothing."""

    def _finish(self, draining: object, lease: object) -> None:
        pass

    def _put_true_watermark(self, draining: object) -> None:
        pass


def _draining_note(location: Storage) -> object:
    return _DrainNote(SparkLog(location), None).finish_interrupted(ALONE)


def _kept_commit(location: Storage) -> object:
    location.write(DRAIN_MARKER, [_DRAINING])
    return _DrainNote(SparkLog(location), None).finish_last_step()


def _decode_canonical(data: bytes) -> object:
    """Expect as many entries as the file says, so that they are decoded."""
    try:
        entries = pq.read_metadata(io.BytesIO(data)).num_rows
    except (pa.ArrowException, OSError, ValueError):
        entries = 50
    return list(decode_canonical(io.BytesIO(data), "it", entries))


def _zipped(entries: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return content.getvalue()


def _unpack(storage: LocalStorage) -> object:
    return unpack_bundle(str(storage.path("bundle.zip")), storage.path("unpacked"))


def _capture_orders(storage: LocalStorage) -> object:
    files = CaptureFiles(storage)
    return files.orders(), files.request((CaptureOrder(7, 9),))


def _local_note(storage: LocalStorage) -> object:
    return LocalSnapshots(storage.root).find(_SNAPSHOT)


def _operator_metadata(storage: LocalStorage) -> object:
    path = "state/0/_metadata/metadata"
    return operator_name(storage, 0), with_operator_id(storage.read(path), storage, 3)


def _requested(request: Callable[[LocalStorage], object], directory: str) -> bytes:
    """Return the only request that was written into a directory."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as place:
        request(LocalStorage(Path(place)))
        (path,) = (Path(place) / directory).glob("*.request.json")
        return path.read_bytes()


def _small_parsers() -> dict[str, Parser]:
    """Return the parsers of files that a query does not need to be restored."""
    entry = HistoryEntry(
        kind=EntryKind.CHECKPOINT,
        status=EntryStatus.ABORTED,
        checkpoint_id=3,
        reason="no",
        phases_ms={"a": 1},
    )
    runs = (
        RunStarted(run_id="r", at_ms=1, query_id="q", operators=("op",)),
        RunNote(run_id="r", at_ms=2, epoch=4),
        RunEnded(run_id="r", at_ms=3, error="no"),
    )
    index = BundleIndex(version=1, root="/x", made_at_ms=1, queries={"0": "/x/q"})
    kept = KeptFiles(2, 1, 0, ("shared/a",), 9)
    note = SnapshotNote(_SNAPSHOT, "4-b", 4, "op", 0, "changes", {"state.chg": None})
    decision = b'{"releases":[{"uid":"op","keys":["00ff"]}],"done":["a"]}'
    release = _requested(
        lambda each: ReleaseFiles(each).request(Release(uid="op", keys=("00ff",))), "releases"
    )
    orders = _requested(
        lambda each: CaptureFiles(each).request((CaptureOrder(1, 3, "op"),)), "captures"
    )
    indexed = {INDEX_NAME: msgspec.json.encode(index)}
    state = _files("whole-*/location/state/0/_metadata/metadata")
    archive = b'v1\n{"sstFiles":[{"dfsSstFileName":"a.sst"}],"logFiles":[]}'
    return {
        "history entry": Parser(
            _at("history/1-1-0.json", lambda each: HistoryLog(each).entries()),
            [msgspec.json.encode(entry)],
        ),
        "run record": Parser(decode_run_record, [*map(encode_run, runs)]),
        "capture order": Parser(_at(f"captures/{_ID}.request.json", _capture_orders), [orders]),
        "release": Parser(_at(f"releases/{_ID}.request.json", _decided), [release]),
        "decision of releases": Parser(
            _at("releases/epoch-0-3.json", lambda each: ReleaseFiles(each).decided(3)), [decision]
        ),
        "draining note": Parser(
            _at(DRAIN_MARKER, _draining_note),
            [_DRAINING],
        ),
        "commit of a drained epoch": Parser(
            _at(DRAINED_COMMIT, _kept_commit), [b'{"epoch":3,"commit":"v1\\n{}"}']
        ),
        "bundle": Parser(_at("bundle.zip", _unpack), [_zipped({**indexed, "queries/0/a": b"1"})]),
        "bundle index": Parser(
            lambda data: _at("bundle.zip", _unpack)(_zipped({INDEX_NAME: data})),
            [indexed[INDEX_NAME]],
        ),
        "kept files": Parser(
            _at(KEPT_FILES_NAME, lambda each: bundled_kept_files(QueryPlace("0", each, None))),
            [msgspec.json.encode(kept)],
        ),
        "local snapshot": Parser(
            _at(f"snapshots/{_SNAPSHOT}/note", _local_note), [msgspec.json.encode(note)]
        ),
        "Spark's source log": Parser(
            lambda data: list(_checked_entries(io.BytesIO(data), 3, "it")),
            _files("whole-*/location/sources/0/3"),
        ),
        "Spark's operator metadata": Parser(
            _at("state/0/_metadata/metadata", _operator_metadata),
            [*state, f"v2\n{json.dumps(_STORES)}".encode()],
        ),
        "Spark's archive of a location": Parser(
            lambda data: _at("state/0/0/4.zip", lambda each: needed_files(each, 0, 4, 1))(data),
            [_zipped({"metadata": archive})],
        ),
        "Spark's names in an archive": Parser(
            lambda data: _at("state/0/0/4.zip", lambda each: needed_files(each, 0, 4, 1))(
                _zipped({"metadata": data})
            ),
            [archive],
        ),
    }


def _decided(storage: LocalStorage) -> object:
    files = ReleaseFiles(storage)
    files.arm(BEFORE_ALL)
    return files.decide(3)


@cache
def parsers() -> dict[str, Parser]:
    """Return all parsers by name."""
    metadata = _files("*/savepoint/_metadata") + _files(
        "whole-*/location/pyspark_ckpt/chk-4/_metadata"
    )
    handles = [
        handle
        for data in metadata
        for operator in decode_metadata(data, "sample").operators
        for handle in operator.handles
    ]
    request = Request(
        action=next(iter(Action)), requested_at_ms=1, expires_at_ms=2, requested_by="test"
    )
    begun = InProgress(
        query_id="q", run="r", epoch=1, began_at_ms=1, token="0" * 16, files=("shared/a",)
    )
    void = (RolledBack("q", 3),)
    swap = (
        b'{"to":"chk-1","kept":"_before_rollback-1","staged":"_rolling_back-1",'
        b'"outgoing":["a"],"incoming":["b"],"rolled_back":[]}'
    )
    origin = _files("whole-*/location/pyspark_ckpt/origin.json") or [
        (
            b'{"path":"/x/chk-1","kind":"checkpoint","checkpoint_id":1,"query_id":"q","epoch":1,'
            b'"operators":["op"],"sha256":"00","claim_mode":"NO_CLAIM"}'
        )
    ]
    owner = b'{"token":"00","location":"/x","file":"1-2"}'
    return {
        "handle": Parser(decode_handle, [encode_handle(each) for each in handles[:6]]),
        "metadata": Parser(lambda data: decode_metadata(data, "it"), metadata, _sealed_metadata),
        "segment": Parser(
            lambda data: list(decode_changes(io.BytesIO(data), "it")),
            _files("**/segment-*.chg") + _files("heap-native/**/*.part"),
            _sealed_changes,
        ),
        "canonical": Parser(
            _decode_canonical,
            _files("**/*.parquet"),
        ),
        "request": Parser(
            _at(f"requests/{_ID}.request.json", lambda storage: RequestFiles(storage).read(_ID)),
            [msgspec.json.encode(request)],
        ),
        "answer": Parser(
            _at(f"requests/{_ID}.answer.json", lambda each: RequestFiles(each).answer_to(_ID)),
            [*map(msgspec.json.encode, (Answer(at_ms=1), Answer(at_ms=1, error="no")))],
        ),
        "in progress": Parser(_at("_in_progress", read_in_progress), [encode_in_progress(begun)]),
        "rolled back": Parser(
            _at("_rolled_back.json", read_rolled_back),
            [
                _written(
                    "_rolled_back.json",
                    lambda each: write_rolled_back(FencedStorage(each, _Unfenced()), void),
                )
            ],
        ),
        "rollback marker": Parser(_at("_rollback", begun_swap), [swap]),
        "origin": Parser(_at("origin.json", read_origin), origin),
        "owner": Parser(_at("owners/1", lambda each: check_owner(each.parent(), each)), [owner]),
        "place": Parser(
            _at("_checkpoints/1", recorded_place),
            [b'{"directory":"/x","inside":null}', b'{"inside":"a/b"}', b"{}"],
        ),
        "store note": Parser(
            _at("stores/1", read_store_note),
            [b'{"type":"zookeeper","quorum":"a:1","node":"/a/b"}'],
        ),
        "pin": Parser(
            _at(pin_name(10**14, "0" * 16), lambda each: pinned_files(each, 0)),
            [encode_pin("test", ["shared/a"])],
        ),
        "initial handles": Parser(
            _at("shared/initial", _read_initial), [msgspec.msgpack.encode(handles[:2])]
        ),
        "capture": Parser(
            lambda data: list(decode_parts(io.BytesIO(data), "it")),
            [_capture(), _capture() * 2],
            _sealed_capture,
        ),
        "Spark's offsets": Parser(
            _at("offsets/3", _read_log), _files("whole-*/location/offsets/3")
        ),
        "Spark's commits": Parser(
            _at("commits/3", _read_commit), _files("whole-*/location/commits/3")
        ),
        "Spark's query id": Parser(
            _at("metadata", lambda each: SparkLog(each).query_id()),
            _files("whole-*/location/metadata"),
        ),
        "Spark's archive": Parser(
            lambda data: checked_content("0/1.zip", data, "it"), [_archive()]
        ),
        **_small_parsers(),
    }
