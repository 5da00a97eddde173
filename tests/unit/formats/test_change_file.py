"""Change files: reading returns what was written, or raises an error."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.formats import change_file
from pyspark_ckpt.formats.change_file import (
    MAGIC,
    decode_changes,
    decode_changes_below,
    encode_changes,
)
from state_backends import Changes

Entries = list[tuple[bytes, bytes | None]]

PARTS: list[Entries] = [
    [(b"k%03d" % n, b"v" * n if n % 3 else None) for n in range(start, start + 20)]
    for start in (0, 20, 40)
]


def encode(parts: list[Entries]) -> bytes:
    changes = (Changes([k for k, _ in part], [v for _, v in part]) for part in parts)
    return b"".join(encode_changes(changes))


def decode(data: bytes) -> list[Entries]:
    parts = decode_changes(io.BytesIO(data), "some.chg")
    return [list(zip(part.keys, part.values, strict=True)) for part in parts]


def frame(payload: object) -> bytes:
    """A frame with a right checksum around a payload of any shape."""
    data = msgspec.msgpack.encode(payload)
    return struct.pack(">II", len(data), zlib.crc32(data)) + data


@given(st.lists(st.lists(st.tuples(st.binary(), st.none() | st.binary())), max_size=4))
def test_what_is_encoded_is_decoded_part_by_part(parts: list[Entries]) -> None:
    assert decode(encode(parts)) == parts


def test_a_file_without_parts_is_whole() -> None:
    assert decode(encode([])) == []


def test_a_delete_is_not_an_empty_value() -> None:
    assert decode(encode([[(b"a", None), (b"b", b"")]])) == [[(b"a", None), (b"b", b"")]]


def test_encoding_takes_one_part_at_a_time() -> None:
    taken = []

    def parts() -> Iterator[Changes]:
        for number in range(3):
            taken.append(number)
            yield Changes([b"%d" % number], [b"v" * 100])

    chunks = encode_changes(parts())
    written = b""
    while b"v" * 100 not in written:
        written += next(chunks)
    assert taken == [0]


def test_decoding_reads_one_frame_at_a_time() -> None:
    data = encode(PARTS)
    source = io.BytesIO(data)
    first = next(decode_changes(source, "some.chg"))
    assert list(zip(first.keys, first.values, strict=True)) == PARTS[0]
    assert source.tell() < len(data) // 2


@pytest.mark.parametrize("eighths", range(8))
def test_a_file_cut_at_an_eighth_is_corrupt(eighths: int) -> None:
    """Scenario 7: a segment or heap snapshot, cut."""
    data = encode(PARTS)
    with pytest.raises(CorruptFileError, match=r"some\.chg"):
        decode(data[: len(data) * eighths // 8])


def test_a_file_cut_anywhere_is_corrupt() -> None:
    data = encode(PARTS)
    for length in range(len(data)):
        with pytest.raises(CorruptFileError):
            decode(data[:length])


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_byte_is_corrupt(seed: int) -> None:
    """Scenario 7: a segment or heap snapshot, a byte changed."""
    rng = random.Random(seed)
    data = bytearray(encode(PARTS))
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    with pytest.raises(CorruptFileError, match=r"some\.chg"):
        decode(bytes(data))


def test_every_flipped_bit_of_a_small_file_is_corrupt() -> None:
    whole = encode([[(b"a", b"1"), (b"b", None)], [(b"c", b"")]])
    for position in range(len(whole) * 8):
        data = bytearray(whole)
        data[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptFileError):
            decode(bytes(data))


@pytest.mark.parametrize("tail", [b"\x00", b"garbage", bytes(8), encode(PARTS)])
def test_trailing_bytes_are_corrupt(tail: bytes) -> None:
    with pytest.raises(CorruptFileError, match=r"some\.chg"):
        decode(encode(PARTS) + tail)


def test_a_missing_or_repeated_or_swapped_frame_does_not_pass_for_the_whole() -> None:
    """Scenario 7: parts of a file missing, twice or swapped."""
    one, two = ([(b"a", b"1")], [(b"b", b"2"), (b"c", b"3")])
    frame_of_one = encode([one])[len(MAGIC) : -8]
    whole = encode([one, two])
    assert frame_of_one in whole
    with pytest.raises(CorruptFileError, match=r"2 entries, but 3"):
        decode(whole.replace(frame_of_one, b""))
    with pytest.raises(CorruptFileError, match=r"4 entries, but 3"):
        decode(whole.replace(frame_of_one, frame_of_one * 2))


@pytest.mark.parametrize(
    "payload",
    ["hello", 7, None, [], [[b"a"]], [[b"a"], ["text"]], [["text"], [b"a"]], [[None], [b"a"]]],
)
def test_a_frame_of_another_shape_is_corrupt_in_spite_of_its_checksum(payload: object) -> None:
    with pytest.raises(CorruptFileError, match=r"some\.chg"):
        decode(MAGIC + frame(payload) + struct.pack(">II", 0, 1))


@pytest.mark.parametrize("keys", [0, 1, 3])
def test_a_frame_with_columns_of_unequal_length_is_corrupt(keys: int) -> None:
    data = MAGIC + frame([[b"k"] * keys, [b"v"] * 2]) + struct.pack(">II", 0, keys)
    with pytest.raises(CorruptFileError, match=r"some\.chg"):
        list(decode_changes(io.BytesIO(data), "some.chg"))


def test_a_huge_declared_frame_is_refused_before_it_is_read() -> None:
    class Source(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 <= size < 1 << 20, "memory for a frame that cannot be there"
            return super().read(size)

    data = MAGIC + struct.pack(">II", change_file.MAX_FRAME_BYTES + 1, 0) + b"x" * 100
    with pytest.raises(CorruptFileError, match="frame"):
        list(decode_changes(Source(data), "some.chg"))


def test_what_the_writer_accepts_the_reader_takes_however_large_the_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_file, "MAX_FRAME_BYTES", 1000)
    entries: Entries = [(b"%d" % number, b"v" * 300) for number in range(10)]
    decoded = decode(encode([entries]))
    assert [entry for part in decoded for entry in part] == entries


def test_an_entry_that_fits_no_frame_is_refused_by_the_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_file, "MAX_FRAME_BYTES", 1000)
    with pytest.raises((CkptError, ValueError)):
        encode([[(b"a", b"v" * 1001)]])


@given(
    st.lists(st.binary(min_size=1, max_size=3), unique=True, max_size=60),
    st.integers(1, 7),
    st.binary(max_size=2),
    st.sampled_from([1, 200, 2000]),
)
def test_only_frames_with_a_prefix_are_decoded(
    keys: list[bytes], size: int, prefix: bytes, longer: int
) -> None:
    """Also keys and prefixes of more than the few bytes that a frame's head has."""
    ordered = sorted(key * longer for key in keys)
    parts = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    data = b"".join(encode_changes(Changes(part, [b"v"] * len(part)) for part in parts))
    prefix = prefix * longer
    decoded = list(decode_changes_below(io.BytesIO(data), "some.chg", prefix))
    found = [key for part in decoded for key in part.keys if key.startswith(prefix)]
    assert found == [key for key in ordered if key.startswith(prefix)]
    needed = [part for part in parts if any(key.startswith(prefix) for key in part)]
    assert len(decoded) <= len(needed) + 1


def test_frames_out_of_order_are_refused() -> None:
    parts = [Changes([b"b"], [b"1"]), Changes([b"a"], [b"2"])]
    data = b"".join(encode_changes(parts))
    with pytest.raises(CorruptFileError, match="not in key order"):
        list(decode_changes_below(io.BytesIO(data), "some.chg", b"z"))
