"""Processors in their own files, as users have them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from pyspark.sql.streaming import StatefulProcessor


def program(
    directory: Path, source: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> StatefulProcessor:
    """Return a processor whose class has this name and is in a file of this directory."""
    path = directory / "its_program.py"
    path.parent.mkdir()
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    made: StatefulProcessor = getattr(module, name)()
    return made
