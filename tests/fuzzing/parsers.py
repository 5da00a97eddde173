"""The parsers of stored bytes, each with whole files of released versions to start from."""

from __future__ import annotations

import hashlib
import io
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyspark_ckpt.formats.canonical_file import decode_canonical
from pyspark_ckpt.formats.change_file import decode_changes
from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.formats.in_progress import InProgress, encode_in_progress, read_in_progress
from pyspark_ckpt.formats.initial_handles import read_initial_handle
from pyspark_ckpt.formats.metadata_file import decode_metadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.formats.origin import read_origin
from pyspark_ckpt.formats.requests import Action, Request, RequestFiles
from pyspark_ckpt.formats.rolled_back import RolledBack, read_rolled_back, write_rolled_back
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
from pyspark_ckpt.restore.rollback import begun_exchange
from pyspark_ckpt.restore.spark_files import checked_content
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.file_reference import FileReference
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.open import read_store_note
from pyspark_ckpt.stores.owner import check_owner
from pyspark_ckpt.stores.reader_pins import encode_pin, pin_name, pinned_files

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0"
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
_HEADER = struct.Struct(">8sIQ32s")
_CAPTURE = struct.Struct(">8sII")
_ID = f"{1:015}-{'0' * 16}"


class Parser(NamedTuple):
    """A parser, whole inputs, and what puts the right checksums into a changed input."""

    parse: Callable[[bytes], object]
    samples: Sequence[bytes]
    seal: Callable[[bytes], bytes] = bytes


def _files(pattern: str, most: int = 6) -> list[bytes]:
    found = sorted(GOLDEN.glob(pattern), key=lambda path: (path.stat().st_size, path.name))
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
    exchange = (
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
            lambda data: list(decode_canonical(io.BytesIO(data), "it", 50)),
            _files("**/*.parquet"),
        ),
        "request": Parser(
            _at(f"requests/{_ID}.request.json", lambda storage: RequestFiles(storage).read(_ID)),
            [msgspec.json.encode(request)],
        ),
        "answer": Parser(
            _at(f"requests/{_ID}.answer.json", lambda each: RequestFiles(each).answer_to(_ID)),
            [b'{"at_ms":1}', b'{"at_ms":1,"error":"no"}'],
        ),
        "in progress": Parser(_at("_in_progress", read_in_progress), [encode_in_progress(begun)]),
        "rolled back": Parser(
            _at("_rolled_back.json", read_rolled_back),
            [_written("_rolled_back.json", lambda each: write_rolled_back(each, void))],
        ),
        "rollback marker": Parser(_at("_rollback", begun_exchange), [exchange]),
        "origin": Parser(_at("origin.json", read_origin), origin),
        "owner": Parser(_at("owners/1", lambda each: check_owner(each.parent(), each)), [owner]),
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
    }
