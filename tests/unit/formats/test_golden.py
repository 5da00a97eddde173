"""Golden savepoints of each format are read, on every backend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pyspark_ckpt.history.verification import verify
from pyspark_ckpt.operator.durable.local_copy import open_local_copy
from pyspark_ckpt.operator.table.stored_keys import MAX_STATES, is_keyed, state_id_of
from pyspark_ckpt.restore.source import RestoreSource
from state_backends import BACKEND_TYPES

GOLDEN = Path(__file__).parents[2] / "golden"
SNAPSHOTS = sorted(path.parent for path in GOLDEN.glob("*/*/savepoint"))


def test_there_are_golden_snapshots() -> None:
    assert {path.name for path in SNAPSHOTS} >= {"rocksdb-native", "heap-native", "heap-canonical"}


@pytest.mark.parametrize("backend", BACKEND_TYPES)
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_snapshot_has_the_state_that_it_was_made_with(
    path: Path, backend: str, tmp_path: Path
) -> None:
    """Scenario 42: savepoints of each format."""
    savepoint = shutil.copytree(path / "savepoint", tmp_path / "savepoint")
    assert verify(str(savepoint)).kind == "savepoint"
    source = RestoreSource(str(savepoint))
    (operator,) = source.metadata.operators
    found: dict[str, dict[str, str]] = {}
    for handle in operator.handles:
        local = tmp_path / str(handle.subtask)
        with open_local_copy(local, backend, source.storage, handle) as copy:
            for key, value in copy.backend.scan():
                if is_keyed(key):
                    state_id = state_id_of(key)
                    is_timer = state_id == MAX_STATES
                    name = "(timers)" if is_timer else handle.states[state_id].name
                    found.setdefault(name, {})[key.hex()] = value.hex()
    assert found == json.loads((path / "state.json").read_text())
