"""Ordered, versioned byte stores for the state of one subtask.

This package knows no Spark and no checkpoints: it stores bytes under bytes, in key order, with a
version that is written atomically with every change. Two backends implement the interface of
:mod:`state_backends.backend`. The tests of both inherit the suite in
``tests/contracts/backend_contract.py``.
"""

from state_backends.backend import Changes, HalfApplied, StateBackend, in_parts
from state_backends.errors import (
    BackendCorruptError,
    BackendFullError,
    BackendLockedError,
    BackendResourceError,
    StateBackendError,
)
from state_backends.registry import (
    BACKEND_TYPES,
    find_snapshot_format,
    open_backend,
    open_snapshot,
    open_temporary,
    snapshot_format_of,
)
from state_backends.snapshot_format import SnapshotFormat

__all__ = [
    "BACKEND_TYPES",
    "BackendCorruptError",
    "BackendFullError",
    "BackendLockedError",
    "BackendResourceError",
    "Changes",
    "HalfApplied",
    "SnapshotFormat",
    "StateBackend",
    "StateBackendError",
    "find_snapshot_format",
    "in_parts",
    "open_backend",
    "open_snapshot",
    "open_temporary",
    "snapshot_format_of",
]
