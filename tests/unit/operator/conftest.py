"""Epochs of a subtask on every backend, spilling after each write or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import BACKEND_TYPES, open_backend
from tests.unit.operator.subtask_epochs import IN_MEMORY, LIMITS, SubtaskEpochs


@pytest.fixture(params=BACKEND_TYPES)
def backend_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LIMITS, ids=["spilling", "in memory"])
def limit_bytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def subtask_epochs(backend_type: str, limit_bytes: int) -> Iterator[SubtaskEpochs]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as temporary:
        spill = Path(temporary) / "spill"
        spill.mkdir()
        with open_backend(backend_type, Path(temporary) / "state", create=True) as backend:
            yield SubtaskEpochs(backend, limit_bytes, spill)
