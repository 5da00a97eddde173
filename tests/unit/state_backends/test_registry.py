"""Backends by name, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from state_backends import BACKEND_TYPES, Changes, StateBackend, StateBackendError, open_backend
from state_backends import errors as backend_errors


@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_every_listed_type_can_be_opened(tmp_path: Path, backend_type: str) -> None:
    with open_backend(backend_type, tmp_path / "state", create=True) as backend:
        assert isinstance(backend, StateBackend)
        assert backend.version() is None


@pytest.mark.parametrize("create", [True, False])
def test_an_unknown_type_is_refused_and_the_known_ones_are_named(
    tmp_path: Path, create: bool
) -> None:
    with pytest.raises(ValueError, match=r"'hashmap'.*rocksdb.*heap"):
        open_backend("hashmap", tmp_path / "state", create=create)
    assert not (tmp_path / "state").exists()


def test_changes_count_their_entries() -> None:
    assert len(Changes([b"a", b"b"], [b"1", None])) == 2
    assert len(Changes([], [])) == 0


@pytest.mark.parametrize(
    "name",
    ["BackendCorruptError", "BackendLockedError", "BackendFullError", "BackendResourceError"],
)
def test_errors_are_backend_errors_and_os_errors(name: str) -> None:
    error = getattr(backend_errors, name)
    assert issubclass(error, StateBackendError)
    assert issubclass(error, OSError)
    assert str(error("where it happened")) == "where it happened"
    assert name in (backend_errors.__doc__ or "")
