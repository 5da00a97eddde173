"""Entries that an edit puts expire when it says, and not at all without a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from pyspark_ckpt.editing.encoding import StoredValues
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.snapshot.columns import StateValues, expiry_array
from pyspark_ckpt.stored.binary_column import BinaryColumn
from state_backends import Changes
from tests.unit.operator.subtask_epochs import NUMBER, SubtaskEpochs, heap_epochs

BEGIN_MS = 1_000_000
DURATION_MS = 10_000
EXPIRES_MS = [None, BEGIN_MS + 5_000, BEGIN_MS + 400 * 365 * 86_400_000, None]


@pytest.fixture
def epochs(tmp_path: Path) -> Iterator[SubtaskEpochs]:
    with heap_epochs(tmp_path) as made:
        yield made


@pytest.mark.parametrize("time", ["processing", "event"])
@pytest.mark.parametrize("update", ["OnCreateAndWrite", "OnReadAndWrite"])
@pytest.mark.parametrize("has_begun", [True, False])
def test_entries_expire_at_the_time_that_was_given(
    epochs: SubtaskEpochs, time: str, update: str, has_begun: bool
) -> None:
    """Whether the state's own time began or not, as in an operator that never ran."""
    ttl = StateTtlConfig(DURATION_MS, update=update, time=time)
    epochs.set_time(BEGIN_MS)
    epochs.begin().getValueState("s", NUMBER, ttl)
    epochs.end()
    (state,) = epochs.states
    assert state.ttl is not None
    if not has_begun:
        state = msgspec.structs.replace(
            state, ttl=msgspec.structs.replace(state.ttl, since_ms=None)
        )
        epochs.states = (state,)
    written = [None if each is None else each - DURATION_MS for each in EXPIRES_MS]
    columns = [pa.array([0, 1, 2, 3]), pa.array(written, pa.int64())]
    put = StoredValues(0, state, BEGIN_MS, has_times=True)
    values = put._values(columns, len(written)).to_pylist()
    keys = [group + b"\x00" + key for group, key in epochs.keys[: len(written)]]
    epochs.backend.apply([Changes(keys, values)], "put")

    shown = StateValues(state, "s").aged(BinaryColumn.of(pa.array(values, pa.binary())))
    assert shown.expires_ms is not None
    assert expiry_array(shown.expires_ms).cast(pa.int64()).to_pylist() == EXPIRES_MS

    for now_ms in (BEGIN_MS + 4_999, BEGIN_MS + 5_000, BEGIN_MS + 100_000_000):
        epochs.set_time(now_ms)
        found = epochs.begin().getValueState("s", NUMBER, ttl)
        for place, expires_ms in enumerate(EXPIRES_MS):
            epochs.to_key(place)
            is_there = expires_ms is None or expires_ms > now_ms
            if update == "OnReadAndWrite" and place == 1 and now_ms > BEGIN_MS + 4_999:
                continue  # it was read before it expired
            assert found.get() == ((place,) if is_there else None)
        epochs.end()
