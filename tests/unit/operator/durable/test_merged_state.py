"""All state of a handle in key order equals a dictionary, however the state is spread."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle, Segment
from pyspark_ckpt.operator.durable import merged_state as module
from pyspark_ckpt.operator.durable.merged_state import merged_state
from pyspark_ckpt.storage.open import LocalStorage, Storage
from state_backends import Changes
from state_backends.backend import FIRST_RESERVED_KEY

KEY = st.binary(min_size=1, max_size=2).filter(lambda key: key < FIRST_RESERVED_KEY)
WRITES = st.dictionaries(KEY, st.none() | st.binary(max_size=2), max_size=30)


def changes(writes: dict[bytes, bytes | None], size: int = 4) -> list[Changes]:
    keys = sorted(writes)
    parts = [keys[start : start + size] for start in range(0, len(keys), size)]
    return [Changes(part, [writes[key] for key in part]) for part in parts]


def encoded(parts: list[Changes]) -> bytes:
    return b"".join(encode_changes(parts))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merged")


@pytest.mark.parametrize("memory_bytes", [2000, 1 << 20], ids=["spilling", "in memory"])
@given(
    base=st.none() | st.dictionaries(KEY, st.binary(max_size=2), max_size=30),
    segments=st.lists(WRITES, max_size=4),
    part_size=st.sampled_from([1, 4, 40]),
)
def test_it_is_what_a_dictionary_has(
    place: Path,
    memory_bytes: int,
    base: dict[bytes, bytes] | None,
    segments: list[dict[bytes, bytes | None]],
    part_size: int,
) -> None:
    storage = LocalStorage(place)
    handle = Handle(
        query_id="q", uid="op", subtask=0, parallelism=1, max_parallelism=8, epoch=1,
        key_schema="{}",
        segments=tuple(
            Segment(str(n), n, len(each), 0, inline=encoded(changes(each)))
            for n, each in enumerate(segments)
        ),
    )  # fmt: skip
    state: dict[bytes, bytes | None] = {}
    if base is not None:
        name = f"base-{len(storage.list())}"
        file = storage.write(name, [encoded(changes(dict(base), part_size))])
        snapshot = BaseSnapshot("b", 0, len(base), (BaseFile("state.chg", file),))
        handle = msgspec.structs.replace(handle, base=snapshot)
        state.update(base)
    for each in segments:
        state.update(each)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_MEMORY_BYTES", memory_bytes)
        parts = list(merged_state(storage, handle, place))
    found = [pair for part in parts for pair in zip(part.keys, part.values, strict=True)]
    assert found == sorted((k, v) for k, v in state.items() if v is not None)
    assert not list(place.glob("spilled-*"))


@pytest.mark.parametrize("part_size", [10, 100])
@pytest.mark.parametrize(
    "writes",
    [
        {b"00": b"first"}, {b"99": b"last"}, {b"10": b"the first"}, {b"59": b"the last"},
        {b"10": None}, {b"59": None}, {b"305": b"between"}, {b"305": None},
        {b"30": b"one", b"31": b"and the next"}, {b"29": None, b"295": b"new", b"30": None},
    ],
)  # fmt: skip
def test_few_writes_into_a_large_part(
    storage: Storage, handle: Handle, tmp_path: Path, writes: dict[bytes, bytes], part_size: int
) -> None:
    state: dict[bytes, bytes | None] = {b"%d" % number: b"base" for number in range(10, 60)}
    file = storage.write("base", [encoded(changes(state, part_size))])
    handle = msgspec.structs.replace(
        handle,
        base=BaseSnapshot("b", 0, len(state), (BaseFile("state.chg", file),)),
        segments=(Segment("1", 1, len(writes), 0, inline=encoded(changes(dict(writes)))),),
    )
    state.update(writes)
    parts = list(merged_state(storage, handle, tmp_path))
    found = [pair for part in parts for pair in zip(part.keys, part.values, strict=True)]
    assert found == sorted((key, value) for key, value in state.items() if value is not None)


@pytest.mark.parametrize(
    "keys", [[b"b", b"a"], [b"a", b"b", b"b", b"c"], [b"a", b"a"], [b"a", b"c", b"b", b"d"]]
)
def test_a_base_out_of_order_is_refused(
    storage: Storage, handle: Handle, tmp_path: Path, keys: list[bytes]
) -> None:
    parts = [Changes(keys[start : start + 2], [b""] * 2) for start in range(0, len(keys), 2)]
    file = storage.write("shared/base", [encoded(parts)])
    snapshot = BaseSnapshot("b", 0, len(keys), (BaseFile("state.chg", file),))
    hostile = msgspec.structs.replace(handle, base=snapshot)
    with pytest.raises(CorruptFileError, match="key order"):
        list(merged_state(storage, hostile, tmp_path))
