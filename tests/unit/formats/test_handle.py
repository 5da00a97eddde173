"""The handle: lineage, files, and errors for bytes that are not a handle."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.counters import EpochPhases
from pyspark_ckpt.formats.handle import (
    EMPTY_VERSION,
    HANDLE_FORMAT_VERSION,
    KEPT_PHASES,
    BaseFile,
    BaseSnapshot,
    Handle,
    Segment,
    StateDescriptor,
    TtlDescriptor,
    decode_handle,
    encode_handle,
    following,
    new_version,
    with_phases,
)
from pyspark_ckpt.formats.modes import (
    ListRedistribution,
    TimeMode,
    TtlTime,
    TtlUpdate,
    TtlVisibility,
)
from pyspark_ckpt.storage.base import FileReference

BASE = BaseSnapshot(
    "4-b", 5, 9, (BaseFile("state.chg", FileReference("shared/base", 90, "b" * 64)),)
)
INLINE = Segment("5-i", 5, 1, 3, inline=b"abc")
FILED = Segment("6-f", 6, 2, 7, file=FileReference("taskowned/segment", 7, "f" * 64))

_texts = st.text(max_size=20)
_numbers = st.integers(0, 2**62)
_files = st.builds(FileReference, _texts, _numbers, _texts)
_segments = st.builds(
    Segment, _texts, _numbers, _numbers, _numbers, st.none() | st.binary(), st.none() | _files
)
_base_files = st.lists(st.builds(BaseFile, _texts, _files), max_size=3).map(tuple)
_states = st.builds(StateDescriptor, _texts, _texts, _texts, st.none() | _texts)
HANDLES = st.builds(
    Handle,
    query_id=_texts,
    uid=_texts,
    subtask=_numbers,
    parallelism=_numbers,
    max_parallelism=_numbers,
    epoch=_numbers,
    key_schema=_texts,
    states=st.lists(_states, max_size=3).map(tuple),
    base=st.none() | st.builds(BaseSnapshot, _texts, _numbers, _numbers, _base_files, _texts),
    segments=st.lists(_segments, max_size=3).map(tuple),
)


def with_parts(handle: Handle, base: BaseSnapshot | None, *segments: Segment) -> Handle:
    return msgspec.structs.replace(handle, base=base, segments=segments)


def test_a_handle_without_changes_is_at_the_empty_version(handle: Handle) -> None:
    assert handle.lineage == (EMPTY_VERSION,)
    assert handle.version == EMPTY_VERSION
    assert handle.files() == []


def test_the_lineage_starts_empty_and_ends_with_the_last_segment(handle: Handle) -> None:
    grown = with_parts(handle, None, INLINE, FILED)
    assert grown.lineage == (EMPTY_VERSION, "5-i", "6-f")
    assert grown.version == "6-f"


def test_the_lineage_of_a_handle_with_a_base_starts_there(handle: Handle) -> None:
    assert with_parts(handle, BASE).lineage == ("4-b",)
    assert with_parts(handle, BASE).version == "4-b"
    assert with_parts(handle, BASE, FILED).lineage == ("4-b", "6-f")


def test_files_are_those_of_base_and_segments_but_not_the_inline_ones(handle: Handle) -> None:
    assert with_parts(handle, BASE, INLINE, FILED).files() == [BASE.files[0].file, FILED.file]


def test_a_handle_has_the_phases_of_its_last_epochs_and_of_no_attempt_before(
    handle: Handle,
) -> None:
    for epoch in (*range(50), 49):  # the last one is repeated
        handle = with_phases(handle, EpochPhases(epoch, 1, 2, 3, 4, 5, 6))
    assert [each.epoch for each in handle.phases] == list(range(50 - KEPT_PHASES, 50))
    assert decode_handle(encode_handle(handle)) == handle
    without = msgspec.structs.replace(handle, phases=())
    assert len(encode_handle(handle)) - len(encode_handle(without)) < 400


def test_two_attempts_of_an_epoch_never_share_a_version() -> None:
    versions = {new_version(12) for _ in range(1000)}
    assert len(versions) == 1000
    assert all(version.startswith("12-") for version in versions)
    assert EMPTY_VERSION not in versions


@given(HANDLES)
def test_what_is_encoded_is_decoded(some: Handle) -> None:
    assert decode_handle(encode_handle(some)) == some


@given(HANDLES, st.binary(min_size=1, max_size=9))
def test_trailing_bytes_are_corrupt(some: Handle, tail: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_handle(encode_handle(some) + tail)


@pytest.mark.parametrize("word", ["time_mode", "redistribution", "time", "update", "visibility"])
def test_a_word_that_never_was_is_refused_by_name(handle: Handle, word: str) -> None:
    """A handle of a newer version may have one; it is not taken for another mode."""
    ttl = TtlDescriptor(
        1, TtlTime.EVENT_TIME, TtlUpdate.ON_READ_AND_WRITE, TtlVisibility.NEVER_RETURN_EXPIRED
    )
    state = StateDescriptor("s", "value", "{}", ttl=ttl, redistribution=ListRedistribution.UNION)
    whole = msgspec.structs.replace(handle, states=(state,), time_mode=TimeMode.EVENT_TIME)
    assert decode_handle(encode_handle(whole)) == whole
    fields = msgspec.to_builtins(whole, builtin_types=(bytes,))
    of_state = fields["states"][0]
    place = next(part for part in (fields, of_state, of_state["ttl"]) if word in part)
    place[word] = "sundial"
    with pytest.raises(CorruptFileError, match=rf"'sundial' - at `\$\..*{word}`"):
        decode_handle(msgspec.msgpack.encode(fields))


def test_every_cut_is_corrupt(handle: Handle) -> None:
    data = encode_handle(with_parts(handle, BASE, INLINE, FILED))
    for length in range(len(data)):
        with pytest.raises(CorruptFileError, match=f"{length} bytes"):
            decode_handle(data[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x80",
        b"hello",
        b"\x80\x04\x95.",
        msgspec.msgpack.encode({"uid": 1}),
        b"\xc1",
        b"\x81\xa3uid\x01",
        b"\x82\xaeformat_version\x01\xa8query_id\xa1\xff",
    ],
)
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="not a handle"):
        decode_handle(data)


@pytest.mark.parametrize("missing", ["query_id", "uid", "subtask", "epoch", "key_schema"])
def test_a_handle_without_a_required_field_is_corrupt(handle: Handle, missing: str) -> None:
    fields = msgspec.to_builtins(handle, builtin_types=(bytes,))
    del fields[missing]
    with pytest.raises(CorruptFileError, match=missing):
        decode_handle(msgspec.msgpack.encode(fields))


def test_a_newer_format_is_refused_with_the_advice_to_upgrade(handle: Handle) -> None:
    newer = msgspec.structs.replace(handle, format_version=HANDLE_FORMAT_VERSION + 1)
    with pytest.raises(CorruptFileError, match="upgrade"):
        decode_handle(encode_handle(newer))


def test_a_newer_format_is_recognised_even_if_its_fields_have_other_types(handle: Handle) -> None:
    fields = msgspec.to_builtins(handle, builtin_types=(bytes,)) | {
        "format_version": HANDLE_FORMAT_VERSION + 1,
        "segments": {"kind": "tree"},
    }
    with pytest.raises(CorruptFileError, match="upgrade"):
        decode_handle(msgspec.msgpack.encode(fields))


def test_fields_that_a_later_minor_version_adds_are_ignored(handle: Handle) -> None:
    """Scenario 42: a handle of a later version."""
    fields = msgspec.to_builtins(handle, builtin_types=(bytes,)) | {"added_later": [1, 2]}
    assert decode_handle(msgspec.msgpack.encode(fields)) == handle


def test_a_handle_knows_what_the_versions_before_it_need(handle: Handle) -> None:
    """It lists the files of its last predecessors, without those that it needs itself."""

    def segment(epoch: int) -> Segment:
        file = FileReference(f"taskowned/{epoch}", 1, "0" * 64)
        return Segment(f"{epoch}-s", epoch, 1, 1, file=file)

    made = msgspec.structs.replace(handle, segments=(segment(1),), epoch=1)
    assert following(made, None) == made
    assert (made.kept_files(), made.kept_since()) == (set(), 1)
    for epoch in range(2, 9):
        after = msgspec.structs.replace(made, segments=(segment(epoch),), epoch=epoch)
        made = following(after, made)
        assert decode_handle(encode_handle(made)) == made
        # Another attempt may have started from the oldest predecessor, or from nothing.
        assert made.kept_since() == max(epoch - 4, 1)
    assert made.kept_files() == {f"taskowned/{epoch}" for epoch in (3, 4, 5, 6, 7)}
    same = following(msgspec.structs.replace(made, epoch=9), made)
    assert same.kept_files() == {f"taskowned/{epoch}" for epoch in (4, 5, 6, 7)}
