"""A console in a thread of this process."""

from __future__ import annotations

import select
import threading
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.console.opening import LOOPBACK, open_console
from pyspark_ckpt.storage.open import LocalStorage


def test_a_console_that_is_closed_while_it_begins_to_wait_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sockets are gone when it asks the system which of them have something to read."""
    real = select.select
    begins, closed = threading.Event(), threading.Event()

    def wait(*arguments: Any) -> Any:
        begins.set()
        assert closed.wait(60)
        return real(*arguments)

    errors: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    monkeypatch.setattr(select, "select", wait)
    console = open_console(LocalStorage(tmp_path), host=LOOPBACK, port=0)
    (thread,) = [each for each in threading.enumerate() if each.name == "pyspark_ckpt console"]
    assert begins.wait(60)
    console.close()
    closed.set()
    thread.join(60)
    assert not thread.is_alive()
    assert errors == []
