"""Fixtures of tests of hostile and of whole savepoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
