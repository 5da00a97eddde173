"""Entries that nobody of this library wrote, in files with right digests, are refused by name."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import types as T
from pyspark.sql.datasource import InputPartition

import pyspark_ckpt as ckpt
from pyspark_ckpt.formats.change_file import encode_changes
from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle
from pyspark_ckpt.formats.layout import METADATA_NAME
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.operator.rows.keys import KeyPlaces
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.stored_keys import OPERATOR_STATE, RAW_STATE, encode_key_group
from pyspark_ckpt.storage.local import LocalStorage
from state_backends import Changes
from tests.unit.snapshot.made_savepoint import MAX_PARALLELISM, TIME_MS, UID, MadeSavepoint

KEYS = T.StructType().add("k", "string")
NUMBER = T.StructType().add("n", "long")
TEXT = T.StructType().add("s", "string")
NAMES = ["value", "aged", "items", "entries"]
HEAD = encode_key_group(KeyPlaces(KEYS, MAX_PARALLELISM).place(("a",))[0])
KEY = b"\x91\xa1a"
ENDLESS = b"\xdd\xff\xff\xff\xff"
DEEP = b"\x91" * 5000
STAMP = b"\xd3" + TIME_MS.to_bytes(8, "big")


def states_of(handle: ProcessorHandle) -> dict[str, Any]:
    return {
        "value": handle.getValueState("value", NUMBER),
        "aged": handle.getValueState("aged", NUMBER, 60_000),
        "items": handle.getListState("items", NUMBER),
        "entries": handle.getMapState("entries", TEXT, NUMBER),
    }


def fill(states: dict[str, Any], key: tuple[Any, ...]) -> None:
    states["value"].update((1,))
    states["aged"].update((1,))
    states["items"].put([(1,), (2,)])
    states["entries"].updateValue(("a",), (1,))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    made = MadeSavepoint(tmp_path, KEYS, [("a",)], parallelism=1)
    made.epoch(states_of, fill)
    yield Path(made.save("savepoint", canonical=False))
    made.close()


def with_entries(path: Path, *entries: tuple[bytes, bytes]) -> None:
    """Let the only subtask hold these entries, with right digests everywhere."""
    storage = LocalStorage(path)
    metadata = read_metadata(storage)
    (operator,) = metadata.operators
    keys, values = map(list, zip(*sorted(entries), strict=True))
    (handle,) = operator.handles
    name = f"{next(iter(metadata.files())).path.rpartition('/')[0]}/{secrets.token_hex(8)}"
    file = storage.write(name, encode_changes([Changes(keys, values)]))
    base = BaseSnapshot(handle.version, handle.epoch, len(keys), (BaseFile("state.chg", file),))
    made: Handle = msgspec.structs.replace(handle, base=base, segments=())
    changed = msgspec.structs.replace(operator, handles=(made,))
    content = encode_metadata(msgspec.structs.replace(metadata, operators=(changed,)))
    (path / METADATA_NAME).write_bytes(content)


def keyed(state: int, key: bytes = KEY) -> bytes:
    return HEAD + bytes([state]) + key


HOSTILE: dict[str, list[tuple[str, bytes, bytes]]] = {
    "value": [
        ("empty", keyed(0), b""),
        ("never used", keyed(0), b"\xc1"),
        ("endless", keyed(0), ENDLESS),
        ("deep", keyed(0), DEEP),
        ("two fields", keyed(0), b"\x92\x01\x02"),
        ("text", keyed(0), b"\x91\xa1x"),
        ("two values", keyed(0), b"\x91\x01\x91\x02"),
        ("no key", keyed(0, b""), b"\x91\x01"),
        ("endless key", keyed(0, ENDLESS), b"\x91\x01"),
        ("number as key", keyed(0, b"\x91\x01"), b"\x91\x01"),
        ("bytes that are no text", keyed(0, b"\x91\xa1\xff"), b"\x91\x01"),
    ],
    "aged": [
        ("a stamp that is cut", keyed(1), b"\xd3\x00"),
        ("only a stamp", keyed(1), STAMP),
        ("endless", keyed(1), STAMP + ENDLESS),
    ],
    "items": [
        ("endless chunk", keyed(2, KEY + bytes(4)), ENDLESS),
        ("a chunk of numbers", keyed(2, KEY + bytes(4)), b"\x92\x01\x02"),
        ("no key", keyed(2, b""), b"\x01"),
        ("key that is cut", keyed(2, b"\x91"), b"\x01"),
    ],
    "entries": [
        ("no map key", keyed(3), b"\x91\x01"),
        ("endless map key", keyed(3, KEY + ENDLESS), b"\x91\x01"),
        ("map key of numbers", keyed(3, KEY + b"\x91\x01"), b"\x91\x01"),
    ],
    "timers": [
        ("no time", HEAD + b"\xff", b""),
        ("a time that is cut", HEAD + b"\xff" + KEY + b"\x00", b""),
        ("endless key", HEAD + b"\xff" + ENDLESS + bytes(8), b""),
    ],
    "raw": [("no number", RAW_STATE, b"x"), ("half a number", RAW_STATE + b"\x00", b"x")],
}
CASES = [
    pytest.param(table, key, value, id=f"{table}, {what}")
    for table, cases in HOSTILE.items()
    for what, key, value in cases
]


def view_of(snapshot: ckpt.results.Snapshot, table: str) -> ckpt.results.TableView:
    if table in NAMES:
        return snapshot.state(UID, table)
    return snapshot.timers(UID) if table == "timers" else snapshot.raw(UID)


@pytest.mark.parametrize(("table", "key", "value"), CASES)
def test_an_entry_of_another_form(path: Path, table: str, key: bytes, value: bytes) -> None:
    """The table, one key, and Spark's tasks refuse it; the other tables are read."""
    good = [(keyed(state), b"\x91\x01") for state, name in ((0, "value"),) if name != table]
    with_entries(path, (key, value), *good)
    options = {"path": str(path), "operator": UID}
    options |= {"state": table} if table in NAMES else {"table": table}
    source = ckpt.StateDataSource(options)
    reader = source.reader(source.schema())
    (part,) = reader.partitions()
    with ckpt.location(str(path)).state() as snapshot:
        reads: list[Callable[[], object]] = [
            lambda: view_of(snapshot, table).to_arrow().read_all(),
            lambda: list(reader.read(InputPartition(part.value))),
        ]
        if table == "value" and key == keyed(0):
            reads.append(lambda: snapshot.state(UID, "value").get("a"))
        for read in reads:
            with pytest.raises(ckpt.errors.CorruptFileError, match=r"operator 'op'"):
                read()
        if good:
            assert snapshot.state(UID, "value").get("a") == {"n": 1}


@pytest.mark.slow
def test_random_entries(path: Path) -> None:
    """Whatever the bytes are, they are read or refused by name."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    heads = [*map(keyed, range(4)), OPERATOR_STATE, RAW_STATE, HEAD]
    values = [b"\x91\x01", STAMP + b"\x91\x01", b""]
    for _ in range(100):
        entries = {}
        for _ in range(chance.randint(1, 4)):
            head = chance.choice(heads)[: chance.randint(1, 9)]
            key = head + chance.randbytes(chance.randint(0, 6))
            entries[key] = chance.choice(values) + chance.randbytes(chance.randint(0, 4))
        with_entries(path, *entries.items())
        with ckpt.location(str(path)).state() as snapshot:
            for table in HOSTILE:
                with suppress(ckpt.errors.CorruptFileError):
                    view_of(snapshot, table).to_arrow().read_all()


@pytest.mark.parametrize("length", [-1, 0, 1])
def test_a_file_with_other_bytes(path: Path, length: int) -> None:
    """Another size is refused when the snapshot is opened, and other bytes when it is read."""
    file = path / next(iter(read_metadata(LocalStorage(path)).files())).path
    data = file.read_bytes()
    file.write_bytes({-1: data[:-1], 0: bytes(len(data)), 1: data + b"x"}[length])

    def read() -> None:
        with ckpt.location(str(path)).state() as snapshot:
            snapshot.state(UID, "value").to_arrow().read_all()

    with pytest.raises(ckpt.errors.CorruptFileError):
        read()
