"""Public functions raise the errors that their docstrings name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.storage.open import LocalStorage

NATIVE = SavepointFormat.NATIVE
OF_A_PATH: dict[str, tuple[Any, ...]] = {
    "list": (),
    "show": (),
    "verify": (),
    "history": (),
    "subtask_history": (),
    "lineage": (),
    "state": (),
    "dispose": (),
    "rename_uid": ({}, "/nowhere"),
}
"""Methods of a location, and what they get."""


def named_errors(function: Any) -> set[str]:
    """Return the names of the errors in the section Raises of a docstring."""
    section = re.search(r"\nRaises\n-+\n(.*?)(\n\n|$)", inspect.getdoc(function) or "", re.DOTALL)
    assert section is not None, function
    lines = [line for line in section[1].splitlines() if not line.startswith(" ")]
    return {name for line in lines for name in line.split(", ")}


def check(function: Any, call: Callable[[], Any]) -> Exception:
    """Check that a call raises an error that the docstring of the function names."""
    with pytest.raises((CkptError, OSError)) as raised:
        call()
    classes = {kind.__name__ for kind in type(raised.value).__mro__}
    assert classes & named_errors(function), (function, raised.value)
    return raised.value


@pytest.mark.parametrize("path", ["ftp://host/sp", "s3://bucket/../sp", "/nowhere/at/all"])
@pytest.mark.parametrize("name", OF_A_PATH)
def test_a_path_that_cannot_be_read_raises_a_named_error(name: str, path: str) -> None:
    method = getattr(ckpt.location(path), name)
    check(method, lambda: method(*OF_A_PATH[name]))


@pytest.mark.parametrize("name", OF_A_PATH)
def test_a_damaged_savepoint_raises_a_named_error(
    name: str,
    snapshot: CheckpointMetadata,
    storage: LocalStorage,
    tmp_path: Path,
) -> None:
    made = Path(write_savepoint(snapshot, storage, str(tmp_path / "sp"), NATIVE).path)
    whole = (made / "_metadata").read_bytes()
    (made / "_metadata").write_bytes(whole[:-1])
    method = getattr(ckpt.location(made), name)
    check(method, lambda: method(*OF_A_PATH[name]))


def test_a_file_of_settings_raises_a_named_error(tmp_path: Path) -> None:
    conf = tmp_path / "some.conf"
    conf.write_text("spark.ckpt.unknown 1\n")
    for path in (conf, tmp_path / "missing.conf", tmp_path):
        check(ckpt.read_conf_file, lambda path=path: ckpt.read_conf_file(path))
    with pytest.raises(AssertionError):
        check(ckpt.read_conf_file, lambda: (_ for _ in ()).throw(CkptError("of no named class")))
