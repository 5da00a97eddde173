"""The typed tables of golden savepoints; the stored bytes are decoded apart from them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pyspark_ckpt as ckpt

GOLDEN = Path(__file__).parents[2] / "golden" / "1"
FORMATS = ["heap-canonical", "heap-native", "rocksdb-canonical", "rocksdb-native"]
OFFSET = 1 << 63
Stored = dict[str, list[tuple[bytes, bytes]]]


def stored_of(path: Path) -> Stored:
    text = json.loads((path / "state.json").read_text())
    return {
        name: [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in entries.items()]
        for name, entries in text.items()
    }


def first_value(data: bytes) -> tuple[Any, bytes]:
    """Return the first MessagePack value of some bytes, and what follows it."""
    for end in range(1, len(data) + 1):
        with suppress(msgspec.DecodeError):
            return msgspec.msgpack.decode(data[:end]), data[end:]
    raise AssertionError(data.hex())


def rows_of(view: ckpt.results.StateView, **options: Any) -> list[tuple[Any, ...]]:
    table = view.to_arrow(**options).read_all()
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture(params=[name for name in FORMATS if (GOLDEN / name).is_dir()])
def path(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / str(request.param)


def test_keyed_states(path: Path) -> None:
    stored = stored_of(path)
    counts = {first_value(k[3:])[0][0]: first_value(v)[0][0] for k, v in stored["n"]}
    due = set()
    for stored_key, value in stored["due"]:
        (key,), rest = first_value(stored_key[3:])
        due.add((key, first_value(rest)[0][0], first_value(value)[0][0]))
    with ckpt.location(str(path / "savepoint")).state() as snapshot:
        assert rows_of(snapshot.state("op", "n")) == [
            (first_value(k[3:])[0][0], first_value(v)[0][0]) for k, v in stored["n"]
        ]
        for key, count in counts.items():
            assert snapshot.state("op", "n").get(key) == {"n": count}
        assert snapshot.state("op", "n").get("nobody") is None
        assert set(rows_of(snapshot.state("op", "due"))) == due
        for key in counts:
            found = snapshot.state("op", "due").get(key) or []
            assert {(key, *row.values()) for row in found} == {row for row in due if row[0] == key}


def test_a_list_whose_chunks_age(path: Path) -> None:
    lists: list[tuple[Any, ...]] = []
    for stored_key, data in stored_of(path)["recent"]:
        (key,), rest = first_value(stored_key[3:])
        if rest:  # a chunk; the entry without a number counts the chunks
            written_ms = int.from_bytes(data[1:9], "big")
            items = map(msgspec.msgpack.decode, msgspec.msgpack.decode(data[9:]))
            lists.extend((key, value, written_ms + 15_000) for (value,) in items)
    with ckpt.location(str(path / "savepoint")).state() as snapshot:
        view = snapshot.state("op", "recent")
        found = [
            (key, value, round(expires.timestamp() * 1000))
            for key, _, value, expires in rows_of(view, include_expired=True)
        ]
        assert found == lists
        alive = [row for row in lists if row[2] > snapshot.watermark_ms]
        assert [(key, value) for key, _, value, _ in rows_of(view)] == [row[:2] for row in alive]


def test_timers(path: Path) -> None:
    timers = []
    for stored_key, _ in stored_of(path)["(timers)"]:
        time_ms = int.from_bytes(stored_key[-8:], "big") - OFFSET
        timers.append((first_value(stored_key[3:])[0][0], time_ms))
    with ckpt.location(str(path / "savepoint")).state() as snapshot:
        view = snapshot.timers("op")
        found = [(k, round(at.timestamp() * 1000)) for k, at in rows_of(view)]  # type: ignore[arg-type]
        assert {b"EventTime", b"ProcessingTime"} & set(view.schema.metadata.values())
    assert found == timers
