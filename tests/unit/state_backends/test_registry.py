"""Backends by name, and their errors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pyspark_ckpt
from state_backends import (
    BACKEND_TYPES,
    Changes,
    StateBackend,
    StateBackendError,
    find_snapshot_format,
    open_backend,
    open_snapshot,
    snapshot_format_of,
)
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


@pytest.mark.parametrize("backend_type", BACKEND_TYPES)
def test_a_snapshot_format_describes_the_files_of_its_backend(
    tmp_path: Path, backend_type: str
) -> None:
    with open_backend(backend_type, tmp_path / "state", create=True) as backend:
        backend.apply([Changes([b"a"], [b"1"])], "1")
        names = backend.snapshot_files(tmp_path / "taken")
    own = snapshot_format_of(backend_type)
    if own is None:
        with pytest.raises(ValueError, match="read only"):
            open_backend(backend_type, tmp_path / "state", create=False, read_only=True)
        return
    assert find_snapshot_format(own.name) is own
    assert all(map(own.is_file, names))
    for name in filter(own.is_immutable, names):
        own.check_file(tmp_path / "taken" / name)
    with open_snapshot(own.name, tmp_path / "taken", read_only=True) as snapshot:
        assert list(snapshot.scan()) == [(b"a", b"1")]
        assert snapshot.version() == "1"


def test_the_stored_name_of_a_format_stays() -> None:
    own = snapshot_format_of("rocksdb")
    assert own is not None
    assert own.name == "rocksdb"
    assert snapshot_format_of("heap") is None


@pytest.mark.parametrize("name", ["heap", "changes", "canonical", "", "../rocksdb"])
def test_no_other_format_belongs_to_a_backend(tmp_path: Path, name: str) -> None:
    assert find_snapshot_format(name) is None
    with pytest.raises(ValueError, match="no backend"):
        open_snapshot(name, tmp_path)


def test_no_other_module_compares_with_the_name_of_a_backend() -> None:
    """Arguments and settings may have a backend as default; decisions ask the table of backends."""
    found = [
        f"{path}:{node.lineno}"
        for path in Path(pyspark_ckpt.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare | ast.Call | ast.Dict)
        for each in ast.iter_child_nodes(node)
        if isinstance(each, ast.Constant) and each.value in BACKEND_TYPES
    ]
    assert not found


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
