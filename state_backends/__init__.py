"""Ordered, versioned byte stores for the state of one subtask.

This package knows no Spark and no checkpoints: it stores bytes under bytes, in key order, with a
version that is written atomically with every change. Two backends implement the one interface of
:mod:`state_backends.backend`; :mod:`state_backends.contract` is the test suite that both inherit.
"""

from state_backends.backend import Changes, HalfApplied, StateBackend, in_parts
from state_backends.errors import (
    BackendCorruptError,
    BackendFullError,
    BackendLockedError,
    BackendResourceError,
    StateBackendError,
)
from state_backends.registry import BACKEND_TYPES, check_database_file, open_backend
from state_backends.rocksdb_files import is_immutable, is_snapshot_file

__all__ = [
    "BACKEND_TYPES",
    "BackendCorruptError",
    "BackendFullError",
    "BackendLockedError",
    "BackendResourceError",
    "Changes",
    "HalfApplied",
    "StateBackend",
    "StateBackendError",
    "check_database_file",
    "in_parts",
    "is_immutable",
    "is_snapshot_file",
    "open_backend",
]
