"""Canonical files: readable by pyarrow alone, and read back as they were written, or an error."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats import canonical_file
from pyspark_ckpt.formats.canonical_file import decode_canonical, encode_canonical
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.operator.table.stored_keys import (
    OPERATOR_STATE,
    RAW_STATE,
    TIME_INDEX,
    TIMERS_ID,
    encode_key_group,
    encode_time,
)
from state_backends import Changes

STATES = (StateDescriptor("count", "value", "{}"), StateDescriptor("tail", "list", "{}"))
HANDLE = Handle(
    query_id="q", uid="op", subtask=3, parallelism=4, max_parallelism=128, epoch=7,
    key_schema="{}", states=STATES,
)  # fmt: skip
Entries = list[tuple[bytes, bytes]]


def encode(entries: Entries, size: int = 10) -> bytes:
    return b"".join(encode_canonical(HANDLE, in_parts(entries, size)))


def in_parts(entries: Entries, size: int) -> Iterator[Changes]:
    for start in range(0, len(entries), size):
        part = entries[start : start + size]
        yield Changes([key for key, _ in part], [value for _, value in part])


def decode(data: bytes, entries: int) -> Entries:
    parts = decode_canonical(io.BytesIO(data), "some.parquet", entries)
    return [pair for part in parts for pair in zip(part.keys, part.values, strict=True)]  # type: ignore[misc]


@given(st.dictionaries(st.binary(min_size=1), st.binary()))
def test_what_is_encoded_is_decoded(state: dict[bytes, bytes]) -> None:
    entries = sorted(state.items())
    assert decode(encode(entries), len(entries)) == entries


def test_many_entries_and_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_file, "_GROUP_ENTRIES", 1000)
    monkeypatch.setattr(canonical_file, "_GROUP_BYTES", 100_000)
    entries = [(b"%06d" % n, b"v" * (n % 7 or 5000)) for n in range(5000)]
    data = encode(entries)
    assert pq.ParquetFile(io.BytesIO(data)).metadata.num_row_groups > 30
    assert decode(data, len(entries)) == entries


def test_row_groups_of_large_values_are_small() -> None:
    """A writer and a reader hold several row groups in memory at once."""
    entries = [(b"%06d" % n, b"v" * 100_000) for n in range(600)]
    metadata = pq.ParquetFile(io.BytesIO(encode(entries))).metadata
    sizes = [metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)]
    assert max(sizes) < 10 << 20


@pytest.mark.parametrize("size", [1, 3, 10])
def test_pyarrow_alone_reads_key_group_state_and_schemas(size: int) -> None:
    """Sorted by key group and key; entries without a key group come last."""
    group = encode_key_group(97)
    stored = [
        group + b"\x00ada", group + b"\x01ada\x00", group + TIMERS_ID + b"ada" + encode_time(5),
        encode_key_group(98) + b"\x00bob", TIME_INDEX + encode_time(5) + group + b"ada",
        OPERATOR_STATE + b"\x01part", RAW_STATE + b"\x00\x00\x00\x00",
        encode_key_group(99) + b"\x07",
    ]  # fmt: skip
    entries = sorted((key, b"v") for key in stored)
    table = pq.read_table(io.BytesIO(encode(entries, size)))
    assert table.select(["key_group", "kind", "state"]).to_pylist() == [
        {"key_group": 97, "kind": "value", "state": "count"},
        {"key_group": 97, "kind": "list", "state": "tail"},
        {"key_group": 97, "kind": "timer", "state": None},
        {"key_group": 98, "kind": "value", "state": "count"},
        {"key_group": 99, "kind": None, "state": None},
        {"key_group": None, "kind": "timer-by-time", "state": None},
        {"key_group": None, "kind": "list", "state": "tail"},
        {"key_group": None, "kind": "raw", "state": None},
    ]
    assert table["stored_key"].to_pylist() == [key for key, _ in entries]
    described = json.loads(table.schema.metadata[b"pyspark_ckpt.subtask"])
    assert (described["uid"], described["subtask"], described["epoch"]) == ("op", 3, 7)
    assert [state["name"] for state in described["states"]] == ["count", "tail"]


@pytest.mark.parametrize(
    ("first", "rest", "states", "codec"),
    [
        ("random", "random", STATES[:1], "UNCOMPRESSED"),
        ("text", "text", STATES[:1], "ZSTD"),
        ("random", "text", STATES[:1], "ZSTD"),
        ("random", "random", STATES, "ZSTD"),  # the other state's may be anything
    ],
)
@pytest.mark.parametrize("first_part", [1, 1_000])
def test_values_are_compressed_unless_none_gets_smaller(
    first: str, rest: str, states: tuple[StateDescriptor, ...], codec: str, first_part: int
) -> None:
    source = random.Random(5)
    kinds = [first] * first_part + [rest] * (5_000 - first_part)
    entries = [
        (b"%06d" % number, source.randbytes(100) if kind == "random" else b"%d" % number * 15)
        for number, kind in enumerate(kinds)
    ]
    parts = [entries[:first_part], entries[first_part:]]
    changes = (Changes([k for k, _ in part], [v for _, v in part]) for part in parts)
    handle = msgspec.structs.replace(HANDLE, states=states)
    data = b"".join(encode_canonical(handle, changes))
    columns = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    codecs = {columns.column(i).path_in_schema: columns.column(i).compression for i in range(5)}
    assert (codecs["stored_key"], codecs["stored_value"]) == ("ZSTD", codec)
    assert decode(data, len(entries)) == entries


def test_encoding_takes_few_groups_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_file, "_GROUP_ENTRIES", 10)
    taken = []

    def parts() -> Iterator[Changes]:
        for n in range(10):
            taken.append(n)
            yield Changes([b"%03d" % n] * 10, [b""] * 10)

    encoded = encode_canonical(HANDLE, parts())
    next(encoded)
    assert len(taken) <= 4  # one is written, one waits, one is made, one more was written
    encoded.close()
    assert len(taken) <= 4


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_is_an_error(seed: int) -> None:
    """Scenario 7: a canonical file, changed or cut."""
    print("seed", seed)
    entries = [(b"%03d" % n, b"value %d" % n) for n in range(200)]
    data = bytearray(encode(entries))
    chance = random.Random(seed)
    if seed % 2:
        del data[chance.randrange(len(data)) :]
    else:
        data[chance.randrange(len(data) - 8, len(data))] ^= 1 << chance.randrange(8)
    with pytest.raises(CorruptFileError, match=r"some\.parquet"):
        decode(bytes(data), len(entries))


def test_a_column_whose_name_is_no_text_is_an_error() -> None:
    """Arrow reads the names of the pages' columns before anything can be checked."""
    data = encode([(b"a", b"b")])
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    at = data.index(b"key_group", footer)
    with pytest.raises(CorruptFileError, match=r"some\.parquet"):
        decode(data[:at] + b"\xff" + data[at + 1 :], 1)


def test_another_parquet_file_is_refused() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"stored_key": [b"a"], "stored_value": [b"b"]}), sink)
    with pytest.raises(CorruptFileError, match="not a canonical file"):
        decode(sink.getvalue(), 1)


def test_a_file_with_other_columns_is_refused() -> None:
    metadata = pq.read_schema(io.BytesIO(encode([]))).metadata
    sink = io.BytesIO()
    table = pa.table({"stored_key": [b"a"], "stored_value": [b"b"]})
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    with pytest.raises(CorruptFileError, match="columns"):
        decode(sink.getvalue(), 1)


def test_another_number_of_entries_is_refused() -> None:
    with pytest.raises(CorruptFileError, match="1 entries, but 2 were written"):
        decode(encode([(b"a", b"b")]), 2)


def test_a_row_group_that_is_declared_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(canonical_file, "MAX_GROUP_BYTES", 10)
    with pytest.raises(CorruptFileError, match="too large"):
        decode(encode([(b"a", b"b" * 1000)]), 1)


def test_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_file, "CANONICAL_FORMAT_VERSION", 2)
    data = encode([(b"a", b"b")])
    monkeypatch.undo()
    with pytest.raises(CorruptFileError, match=r"format 2 is newer .* upgrade pyspark_ckpt"):
        decode(data, 1)


def test_deleted_states_keep_their_names() -> None:
    handle = msgspec.structs.replace(
        HANDLE, states=(msgspec.structs.replace(STATES[0], sweeps=0), STATES[1])
    )
    data = b"".join(encode_canonical(handle, in_parts([(encode_key_group(1) + b"\x00k", b"v")], 1)))
    assert pq.read_table(io.BytesIO(data))["state"].to_pylist() == ["count"]


def test_a_bomb_whose_pages_expand_beyond_what_the_footer_says_is_refused() -> None:
    """64 MiB in a page of a few KB, in a file that calls it 64 times smaller."""
    bomb = encode([(b"key", bytes(64 << 20))])
    assert len(bomb) < 64 << 10
    metadata = pq.ParquetFile(io.BytesIO(bomb)).metadata
    for size in (metadata.row_group(0).column(4).total_uncompressed_size,
                 metadata.row_group(0).total_byte_size):  # fmt: skip
        declared = varint(size)
        smaller = varint(size >> 6, len(declared))
        assert declared in bomb
        bomb = bomb.replace(declared, smaller)
    declared_bytes = pq.ParquetFile(io.BytesIO(bomb)).metadata.row_group(0).total_byte_size
    assert declared_bytes < 2 << 20
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptFileError, match=r"stored_value expands to .* are declared"):
        decode(bomb, 1)
    assert pa.total_allocated_bytes() - before < 2 << 20


def test_a_bomb_of_one_value_for_many_rows_is_refused() -> None:
    """A dictionary: 100,000 rows of 1 MB each in 1 MB."""
    rows = 100_000
    table = pa.table(
        {
            "key_group": pa.array([0] * rows, pa.int32()),
            "kind": pa.array(["value"] * rows),
            "state": pa.array(["count"] * rows),
            "stored_key": pa.array([b"%06d" % n for n in range(rows)], pa.binary()),
            "stored_value": pa.DictionaryArray.from_arrays(
                pa.array([0] * rows, pa.int32()), pa.array([bytes(1 << 20)], pa.binary())
            ),
        },
    )
    said = pq.ParquetFile(io.BytesIO(encode([(b"key", b"value")]))).metadata.metadata
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, table.schema, store_schema=False, use_dictionary=["stored_value"], compression="zstd"
    ) as to:
        to.write_table(table)
        to.add_key_value_metadata(said)
    assert len(sink.getvalue()) < 8 << 20
    with pytest.raises(CorruptFileError, match="stored_value has a dictionary"):
        decode(sink.getvalue(), rows)


@pytest.mark.parametrize(
    "options", [{"column_encoding": "DELTA_BYTE_ARRAY"}, {"data_page_version": "2.0"}]
)
def test_pages_of_other_encodings_are_refused(options: dict[str, str]) -> None:
    """Of values with a common beginning some encodings store it once."""
    plain = pq.read_table(io.BytesIO(encode([(b"%d" % n, b"x" * 1000) for n in range(1000)])))
    sink = io.BytesIO()
    if "column_encoding" in options:
        encodings = dict.fromkeys(("stored_key", "stored_value"), options["column_encoding"])
        pq.write_table(plain, sink, use_dictionary=False, column_encoding=encodings)
    else:
        pq.write_table(plain, sink, use_dictionary=False, **options)
    with pytest.raises(CorruptFileError, match="not of plain values"):
        decode(sink.getvalue(), 1000)


def varint(number: int, length: int = 0) -> bytes:
    """Encode a number of the footer: zigzag, seven bits to a byte, at least of the given length."""
    number *= 2
    parts = []
    while number >= 0x80 or len(parts) + 1 < length:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
