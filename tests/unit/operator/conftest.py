"""Epochs of a subtask: one backend works in memory, the other spills after each write.

Writes spill to RocksDB whatever the backend is, so the other two combinations say nothing new.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ckpt.operator.table.writes import DEFAULT_LIMIT_BYTES
from state_backends import open_backend
from tests.unit.operator.subtask_epochs import IN_MEMORY, LIMITS, SPILLS_ALWAYS, SubtaskEpochs


@pytest.fixture(params=LIMITS, ids=["spilling", "in memory"])
def limit_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(
    params=[("rocksdb", SPILLS_ALWAYS), ("heap", DEFAULT_LIMIT_BYTES)],
    ids=["rocksdb spilling", "heap in memory"],
)
def subtask_epochs(request: pytest.FixtureRequest) -> Iterator[SubtaskEpochs]:
    backend_type, limit_bytes = request.param
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as temporary:
        spill = Path(temporary) / "spill"
        spill.mkdir()
        with open_backend(backend_type, Path(temporary) / "state", create=True) as backend:
            epochs = SubtaskEpochs(backend, limit_bytes, spill)
            yield epochs
            epochs.close()
