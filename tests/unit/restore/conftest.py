"""Fixtures of tests of hostile and of whole savepoints."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the names of all files opened from here on."""
    names: list[str] = []
    recording = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if recording and event == "open":
            names.append(str(args[0]))

    sys.addaudithook(hook)
    yield names
    recording = False


class Canary:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.call, (["touch", str(self.path)],)


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[tuple[bytes, Path]]:
    """A pickle that makes a file when it is loaded; at the end of the test there must be none."""
    path = tmp_path / "canary"
    payload = pickle.dumps(Canary(path))
    pickle.loads(payload)
    assert path.exists()  # it would sing
    path.unlink()
    yield payload, path
    assert not path.exists()
