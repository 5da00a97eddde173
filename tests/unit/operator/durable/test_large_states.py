"""Large state under one key: reads and writes do not grow with it."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import types as T

from benchmarks.machine.process_memory import measured
from benchmarks.subtask_steps import STEPS, Place, command
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.durable.stored_files import make_base
from pyspark_ckpt.operator.run.barrier import make_segment
from pyspark_ckpt.operator.table.writes import FRAME_BYTES, in_frames
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.values.codec import TupleCodec
from state_backends import BACKEND_TYPES, Changes, StateBackend, open_backend
from tests.unit.operator.subtask_epochs import IN_MEMORY, KEYS, NUMBER, SubtaskEpochs

pytestmark = pytest.mark.slow

ENTRIES = 1_000_000
VALUES = 100_000
BLOB = T.StructType([T.StructField("b", T.BinaryType())])


class Counted:
    """A backend that counts what is read from it."""

    def __init__(self, backend: StateBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys_read = 0
        self.entries_scanned = 0
        get_many, scan = backend.get_many, backend.scan

        def counted_get(keys: Sequence[bytes]) -> list[bytes | None]:
            self.keys_read += len(keys)
            return get_many(keys)

        def counted_scan(prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            for entry in scan(prefix, start):
                self.entries_scanned += 1
                yield entry

        monkeypatch.setattr(backend, "get_many", counted_get)
        monkeypatch.setattr(backend, "scan", counted_scan)


@pytest.fixture(params=BACKEND_TYPES)
def epochs(request: pytest.FixtureRequest) -> Iterator[SubtaskEpochs]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
        spill = Path(directory) / "spill"
        spill.mkdir()
        with open_backend(str(request.param), Path(directory) / "state", create=True) as backend:
            yield SubtaskEpochs(backend, 1 << 28, spill)


def written(changes: list[Changes]) -> int:
    return sum(map(len, changes))


def test_one_look_up_in_a_wide_map_reads_one_entry(
    epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 28: a map of a million entries."""
    handle = epochs.begin()
    state = handle.getMapState("m", NUMBER, NUMBER)
    state.updateValue((-1,), (-1,))
    epochs.end()
    encode = TupleCodec(NUMBER, "map", is_key=True).encode
    prefix = KEYS[0][0] + b"\x00" + KEYS[0][1]
    keys = sorted(prefix + encode((number,)) for number in range(ENTRIES))
    epochs.backend.apply([Changes(keys, [encode((7,))] * ENTRIES)], "filled")

    state = epochs.begin().getMapState("m", NUMBER, NUMBER)
    counted = Counted(epochs.backend, monkeypatch)
    assert state.getValue((ENTRIES // 2,)) == (7,)
    assert state.containsKey((ENTRIES - 1,))
    assert not state.containsKey((ENTRIES,))
    state.updateValue((3,), (8,))
    state.removeKey((4,))
    assert state.exists()
    assert counted.keys_read == 3
    assert counted.entries_scanned <= 1
    assert written(epochs.end()) == 2


def test_appending_to_a_long_list_reads_and_writes_only_its_end(
    epochs: SubtaskEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 28: a list of 100,000 values."""
    epochs.begin().getListState("l", NUMBER).appendList([(n,) for n in range(VALUES)])
    epochs.end()
    state = epochs.begin().getListState("l", NUMBER)
    counted = Counted(epochs.backend, monkeypatch)
    state.appendValue((VALUES,))
    assert written(epochs.end()) == 2  # a chunk, and the number of chunks
    assert counted.keys_read <= len(KEYS)
    assert counted.entries_scanned == 0
    values = epochs.begin().getListState("l", NUMBER).get()
    assert [value for (value,) in values] == list(range(VALUES + 1))


def test_values_of_ten_megabytes_come_back_whole(epochs: SubtaskEpochs) -> None:
    """Scenario 28: values of 10 MB."""
    blob = bytes(range(256)) * 40_960
    epochs.begin().getValueState("v", BLOB).update((blob,))
    epochs.end()
    assert epochs.begin().getValueState("v", BLOB).get() == (blob,)


@pytest.mark.soak
@pytest.mark.parametrize("backend_type", [pytest.param("heap", marks=pytest.mark.soak), "rocksdb"])
def test_memory_does_not_grow_with_what_is_written_applied_or_rebuilt(
    tmp_path: Path, backend_type: str
) -> None:
    """Scenario 28: 256 MB at a limit of 64 MB; native memory counts, mapped files do not."""
    place = Place(tmp_path, backend_type, 256 << 20, 10_000)
    grown = {}
    for step in STEPS:
        grown[step] = measured(command(step, place)).anonymous_bytes >> 20
    print(f"{backend_type}: grown by so many MiB: {grown}")
    assert max(grown.values()) < 230


@pytest.mark.soak_variants
@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_large_values_are_never_all_in_memory(
    tmp_path: Path, storage: Storage, handle: Handle, backend_type: str
) -> None:
    """Scenario 28: 210 MB in values of 2.1 MB, as a segment, a base snapshot and a rebuilt copy."""
    rows = ((b"%03d" % n, b"%03d" % n * 700_000) for n in range(100))
    tracemalloc.start()
    try:
        segment = make_segment(storage, handle, in_frames(rows), 1, 1 << 20)
        assert segment is not None
        handle = msgspec.structs.replace(handle, segments=(segment,))
        with open_local_copy(tmp_path / "local", backend_type, storage, handle) as copy:
            base = make_base(storage, copy.backend, handle, 2)
        handle = msgspec.structs.replace(handle, base=base, segments=())
        with open_local_copy(tmp_path / "rebuilt", backend_type, storage, handle) as copy:
            assert sum(len(value) for _, value in copy.backend.scan()) == 210_000_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * FRAME_BYTES
