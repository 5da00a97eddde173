"""The ``_metadata`` file: complete and of a known format, or an error."""

from __future__ import annotations

import hashlib
import os
import random
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.errors import CheckpointError, CheckpointNotFoundError, CorruptFileError
from pyspark_ckpt.formats.counters import EpochMetrics, EpochPhases
from pyspark_ckpt.formats.handle import (
    BaseFile,
    BaseSnapshot,
    Handle,
    PendingSnapshot,
    Predecessor,
    Segment,
    SlowKey,
    SlowKeys,
    StateCount,
    StateCounts,
    StateDescriptor,
    TtlDescriptor,
)
from pyspark_ckpt.formats.metadata import (
    CheckpointMetadata,
    OperatorMetadata,
    SourceLog,
    SparkOperatorFile,
    SparkOperatorMetadata,
)
from pyspark_ckpt.formats.metadata_file import (
    MAGIC,
    MAX_METADATA_BYTES,
    METADATA_FORMAT_VERSION,
    decode_metadata,
    encode_metadata,
    read_metadata,
)
from pyspark_ckpt.formats.modes import CheckpointKind, TtlTime, TtlUpdate, TtlVisibility
from pyspark_ckpt.storage.base import FileReference
from pyspark_ckpt.storage.open import LocalStorage, Storage

TTL = TtlDescriptor(
    1, TtlTime.EVENT_TIME, TtlUpdate.ON_READ_AND_WRITE, TtlVisibility.NEVER_RETURN_EXPIRED
)
BASE = FileReference("shared/base", 1000, "b" * 64)
SEGMENT = FileReference("taskowned/segment", 200, "c" * 64)
LOG = FileReference("shared/source", 30, "d" * 64)
HEADER_BYTES = len(MAGIC) + 4 + 8 + 32


@pytest.fixture
def metadata(handle: Handle) -> CheckpointMetadata:
    """Two subtasks that share a base file; one has a segment in a file and one inline."""
    segments = (
        Segment("5-a", 5, 2, 200, file=SEGMENT),
        Segment("6-b", 6, 1, 4, inline=b"\x00\xff12"),
    )
    base = BaseSnapshot("4-c", 4, 9, (BaseFile("state.chg", BASE),))
    handles = (
        msgspec.structs.replace(handle, base=base, segments=segments),
        msgspec.structs.replace(handle, subtask=2, base=base),
    )
    operator = OperatorMetadata(
        operator_id=0, uid="zählen ✓", parallelism=4, max_parallelism=128, key_schema="{}",
        backend="heap", handles=handles,
    )  # fmt: skip
    return CheckpointMetadata(
        checkpoint_id=7, kind=CheckpointKind.CHECKPOINT,
        root="..", epoch=6, query_id="q", query_name=None,
        parent=None, spark_version="4.3.0", library_version="0.1.0", triggered_at_ms=1,
        completed_at_ms=2, watermark_ms=0, offsets_entry="v1\n{}\n-", commits_entry="v1\n{}",
        source_logs=(SourceLog(0, "0", LOG),), operators=(operator,),
    )  # fmt: skip


def packed(
    body: bytes, *, version: int = METADATA_FORMAT_VERSION, length: int | None = None
) -> bytes:
    """A file with a right checksum around any body."""
    size = len(body) if length is None else length
    header = struct.pack(">8sIQ32s", MAGIC, version, size, hashlib.sha256(body).digest())
    return header + body


def test_what_is_encoded_is_decoded(metadata: CheckpointMetadata) -> None:
    assert decode_metadata(encode_metadata(metadata), "m") == metadata


def _of_operator(**changes: Any) -> Callable[[CheckpointMetadata], CheckpointMetadata]:
    def changed(metadata: CheckpointMetadata) -> CheckpointMetadata:
        (operator,) = metadata.operators
        operator = msgspec.structs.replace(operator, **changes)
        return msgspec.structs.replace(metadata, operators=(operator,))

    return changed


def _of_metadata(**changes: Any) -> Callable[[CheckpointMetadata], CheckpointMetadata]:
    return lambda metadata: msgspec.structs.replace(metadata, **changes)


_UDT = '{"fields":[{"name":"k","type":{"type":"udt","pyClass":"a.B"}}],"type":"struct"}'


@pytest.mark.parametrize(
    "change",
    [
        _of_metadata(root="."),
        _of_metadata(kind=CheckpointKind.SAVEPOINT),
        _of_metadata(epoch=-1),
        _of_operator(parallelism=0),
        _of_operator(parallelism=256),
        _of_operator(operator_id=-1),
        _of_operator(key_schema="no schema"),
        _of_operator(key_schema=_UDT),
        lambda metadata: _of_metadata(operators=metadata.operators * 2)(metadata),
        lambda metadata: _of_metadata(
            operators=(
                *metadata.operators,
                msgspec.structs.replace(metadata.operators[0], uid="other", handles=()),
            )
        )(metadata),  # two operators with one id
        _of_metadata(
            spark_operators=(SparkOperatorMetadata(0, "dedupe", ()),)
        ),  # the id of our operator
        lambda metadata: _of_metadata(source_logs=metadata.source_logs * 2)(metadata),
        _of_metadata(source_logs=(SourceLog(0, "../0", LOG),)),
        _of_metadata(source_logs=(SourceLog(0, "0", FileReference("../x", 1, "d" * 64)),)),
        _of_metadata(source_logs=(SourceLog(0, "0", FileReference("shared/x", -1, "d" * 64)),)),
        _of_metadata(source_logs=(SourceLog(0, "0", FileReference("shared/x", 1, "")),)),
        _of_metadata(
            source_logs=(SourceLog(0, "0", FileReference(BASE.path, 1, "d" * 64)),)
        ),  # a base snapshot has that path, with another digest
    ],
)
def test_what_no_reader_accepts_is_not_written(
    metadata: CheckpointMetadata, change: Callable[[CheckpointMetadata], CheckpointMetadata]
) -> None:
    """A checkpoint would count as complete, and older ones would be deleted."""
    changed = change(metadata)
    with pytest.raises(CheckpointError) as read:
        decode_metadata(packed(msgspec.json.encode(changed)), "the _metadata of epoch 6")
    with pytest.raises(type(read.value)):
        encode_metadata(changed)


def test_a_handle_is_stored_without_what_is_of_the_run_alone(
    metadata: CheckpointMetadata,
) -> None:
    """All else that a handle can hold is decoded as it was."""
    count = StateCount(name="s", keys=1, entries=1, size_bytes=1)
    counts = StateCounts(
        epoch=6, counted_at_ms=1, took_us=1, groups=1, of_groups=1, timers=0, states=(count,)
    )
    (operator,) = metadata.operators
    stored = tuple(
        msgspec.structs.replace(
            handle,
            metrics=EpochMetrics(rows=1, lost_attributes=("seen",), backend={"x": 1}),
            counts=counts,
            predecessors=(Predecessor(5, ("shared/base",), "0" * 16),),
            pending=PendingSnapshot("0" * 16, "6-b", 6, 1, "run"),
            states=(StateDescriptor("s", "value", "{}", ttl=TTL),),
        )
        for handle in operator.handles
    )
    full = tuple(
        msgspec.structs.replace(
            handle,
            slow_keys=SlowKeys(9, (SlowKey("a", 7),)),
            phases=(EpochPhases(6, 1, 2, 3, 4, 5, 6),),
        )
        for handle in stored
    )
    decoded = decode_metadata(encode_metadata(_of_operator(handles=full)(metadata)), "m")
    assert decoded == _of_operator(handles=stored)(metadata)


def test_files_are_all_that_handles_and_source_logs_need(metadata: CheckpointMetadata) -> None:
    assert metadata.files() == [BASE, SEGMENT, BASE, LOG]


def test_the_size_counts_a_shared_file_once_and_inline_segments_too(
    metadata: CheckpointMetadata,
) -> None:
    assert metadata.size_bytes == 1000 + 200 + 30 + 4


def test_a_file_cut_anywhere_is_corrupt(metadata: CheckpointMetadata) -> None:
    """Scenario 7: `_metadata`, at every eighth and more."""
    data = encode_metadata(metadata)
    eighths = [len(data) * part // 8 for part in range(8)]
    for length in [*eighths, *range(HEADER_BYTES + 2), len(data) - 1]:
        with pytest.raises(CorruptFileError, match="chk-7/_metadata"):
            decode_metadata(data[:length], "chk-7/_metadata")


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_byte_is_corrupt(metadata: CheckpointMetadata, seed: int) -> None:
    """Scenario 7: `_metadata`, a byte changed."""
    rng = random.Random(seed)
    data = bytearray(encode_metadata(metadata))
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    with pytest.raises(CorruptFileError, match="chk-7/_metadata"):
        decode_metadata(bytes(data), "chk-7/_metadata")


def test_every_flipped_bit_of_the_header_is_corrupt(metadata: CheckpointMetadata) -> None:
    """Scenario 8: wrong magic, and all else in the header."""
    whole = encode_metadata(metadata)
    passed = []
    for bit in range(HEADER_BYTES * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        try:
            decode_metadata(bytes(data), "m")
        except CorruptFileError:
            continue
        passed.append(f"byte {bit // 8}, bit {bit % 8}")
    assert passed == []


@pytest.mark.parametrize("tail", [b"\x00", b"\n", b"garbage" * 100])
def test_trailing_bytes_are_corrupt(metadata: CheckpointMetadata, tail: bytes) -> None:
    """Scenario 8: trailing garbage."""
    with pytest.raises(CorruptFileError, match="were written"):
        decode_metadata(encode_metadata(metadata) + tail, "m")


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**40, 2**64 - 1])
def test_a_wrong_length_is_corrupt_and_costs_no_memory(length: int) -> None:
    """Scenario 8: a length of 2 GB and more."""
    with pytest.raises(CorruptFileError, match="were written"):
        decode_metadata(packed(b"{}", length=length), "m")


def test_a_newer_format_is_refused_with_the_advice_to_upgrade() -> None:
    """Scenarios 8 and 42: a future version."""
    with pytest.raises(CorruptFileError, match="upgrade"):
        decode_metadata(packed(b"anything new", version=METADATA_FORMAT_VERSION + 1), "m")


def test_a_format_that_never_was_is_refused(metadata: CheckpointMetadata) -> None:
    with pytest.raises(CorruptFileError):
        decode_metadata(packed(msgspec.json.encode(metadata), version=0), "m")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b"null", b"not json", b'{"epoch": "six"}', b'{"kind": "\xff"}',
        b"\x80\x04\x95.", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["empty", "{}", "[]", "null", "text", "type", "utf-8", "pickle", "nested"],
)  # fmt: skip
def test_another_body_is_corrupt_in_spite_of_its_checksum(body: bytes) -> None:
    """Scenario 8: invalid UTF-8, and no JSON at all."""
    with pytest.raises(CorruptFileError, match="chk-7"):
        decode_metadata(packed(body), "chk-7")


@pytest.mark.parametrize("field", ["epoch", "offsets_entry", "operators", "root", "kind"])
def test_a_missing_field_is_corrupt(metadata: CheckpointMetadata, field: str) -> None:
    fields = msgspec.to_builtins(metadata)
    del fields[field]
    with pytest.raises(CorruptFileError, match=field):
        decode_metadata(packed(msgspec.json.encode(fields)), "m")


def test_a_checkpoint_is_read_from_its_directory_and_from_inside(
    storage: Storage, metadata: CheckpointMetadata
) -> None:
    storage.write("chk-7/_metadata", [encode_metadata(metadata)])
    assert read_metadata(storage, "chk-7") == metadata
    assert read_metadata(LocalStorage(storage.root / "chk-7")) == metadata


@pytest.mark.parametrize("present", [None, "chk-7/other", "chk-7/_metadata/directory", "chk-7"])
def test_a_directory_without_metadata_is_no_checkpoint(
    storage: Storage, put_file: Callable[..., Path], present: str | None
) -> None:
    """Scenario 35: an unknown path."""
    if present is not None:
        put_file(present)
    with pytest.raises(CheckpointNotFoundError, match="chk-7"):
        read_metadata(storage, "chk-7")


def test_a_damaged_file_is_named_by_its_path(
    storage: Storage, put_file: Callable[..., Path], metadata: CheckpointMetadata
) -> None:
    path = put_file("chk-7/_metadata", encode_metadata(metadata)[:-1])
    with pytest.raises(CorruptFileError, match=str(path)):
        read_metadata(storage, "chk-7")


def test_a_thousand_subtasks_are_one_file_and_a_few_times_its_memory(
    metadata: CheckpointMetadata,
) -> None:
    """Scenario 28: a thousand handles of a base and twenty segments each."""
    (operator,) = metadata.operators
    handles = tuple(
        msgspec.structs.replace(
            operator.handles[0],
            subtask=subtask,
            parallelism=1000,
            segments=tuple(
                Segment(f"{n}-{subtask:x}", n, 1, 200, file=_numbered(subtask, n))
                for n in range(20)
            ),
        )
        for subtask in range(1000)
    )
    operator = msgspec.structs.replace(
        operator, parallelism=1000, max_parallelism=4000, handles=handles
    )
    wide = msgspec.structs.replace(metadata, operators=(operator,))
    data = encode_metadata(wide)
    tracemalloc.start()
    try:
        decoded = decode_metadata(data, "m")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded == wide
    assert len({file.path for file in decoded.files()}) == 20_002
    assert peak_bytes < 10 * len(data)


def _numbered(subtask: int, number: int) -> FileReference:
    return FileReference(
        f"taskowned/segment-{subtask}-{number}-0123456789abcdef.chg", 200, "e" * 64
    )


def test_a_file_beyond_all_bounds_is_refused_unread(
    storage: Storage, put_file: Callable[..., Path]
) -> None:
    """Scenario 8: bounded memory."""
    path = put_file("chk-7/_metadata", b"")
    os.truncate(path, 1 << 42)  # sparse; nobody has the memory to read it
    with pytest.raises(CorruptFileError, match=str(MAX_METADATA_BYTES)):
        read_metadata(storage, "chk-7")


def test_the_state_of_sparks_operators_is_stored_too(metadata: CheckpointMetadata) -> None:
    dedupe = SparkOperatorMetadata(1, "dedupe", (SparkOperatorFile("0/1.delta", BASE),))
    mixed = msgspec.structs.replace(metadata, spark_operators=(dedupe,))
    assert decode_metadata(encode_metadata(mixed), "name").spark_operators == (dedupe,)
    assert mixed.size_bytes == metadata.size_bytes  # the same file
    assert len(mixed.files()) == len(metadata.files()) + 1


class _DeletedBetweenItsSizeAndItsContent(LocalStorage):
    """As by a cleaner that runs at the same time as a reader."""

    def size_bytes(self, relative: str) -> int | None:
        size_bytes = super().size_bytes(relative)
        self.path(relative).unlink(missing_ok=True)
        return size_bytes


def test_a_file_that_goes_while_it_is_read_is_not_found(
    metadata: CheckpointMetadata, tmp_path: Path
) -> None:
    (tmp_path / "_metadata").write_bytes(encode_metadata(metadata))
    with pytest.raises(CheckpointNotFoundError, match=re.escape(str(tmp_path))):
        read_metadata(_DeletedBetweenItsSizeAndItsContent(tmp_path))


def test_the_error_of_another_path_says_what_is_there(tmp_path: Path) -> None:
    """And it names what to give: of a query its newest checkpoint, and savepoints."""
    location = tmp_path / "location"
    checkpoints = location / "pyspark_ckpt"
    places = [checkpoints / "chk-2", checkpoints / "chk-10", checkpoints / "chk-11"]
    savepoints = [tmp_path / "sp" / f"savepoint-3f2a10-{number:012}" for number in range(7)]
    begun, other = tmp_path / "new" / "pyspark_ckpt", tmp_path / "other" / "x"
    for place in (*places, *savepoints, begun, other):
        place.mkdir(parents=True)
    for place in (*places[:2], *savepoints):  # chk-11 is not complete
        (place / "_metadata").touch()
    newest = f"give {places[1]}, its newest checkpoint"
    first = ", ".join(map(str, savepoints[:5]))
    for path, says in (
        (
            tmp_path / "nosuch",
            "does not exist, is empty or is a file: give the path of a savepoint",
        ),
        (location, f"is a checkpointLocation: {newest}"),
        (checkpoints, f"is a directory of checkpoints: {newest}"),
        (places[2], "does not exist, is empty or is a file"),
        (tmp_path / "sp", f"is a directory of savepoints: give one of them, {first} and 2 more"),
        (tmp_path / "new", "is a checkpointLocation without a complete checkpoint: wait for one"),
        (tmp_path / "other", "holds no complete checkpoint or savepoint (no _metadata): give the"),
        (savepoints[0] / "_metadata", "does not exist, is empty or is a file"),
    ):
        with pytest.raises(CheckpointNotFoundError, match=re.escape(f"{path} {says}")):
            read_metadata(LocalStorage(path))
