"""Where an epoch of a subtask can be held, in a Python worker of an executor.

The test arms a phase by a file. The first task there takes the file, notes its identity, and waits
at a FIFO until it is killed or released. The library's phases are recognised by the files that it
touches (an audit hook of Python sees them), so the code that runs is the real one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Row

from tests.recovery.program import Numbering

MARKS = "CKPT_TEST_MARKS"
"""The environment variable that names the directory of the marks."""

PADDING_BYTES = 30_000
_IN_FILES = {
    "open": ("open", re.compile(r"/taskowned/segment-[^/]+\.chg")),  # read, to catch up
    "barrier": ("os.link", re.compile(r"/taskowned/\.segment-[^/]+\.tmp")),  # written, has no name
    "base": ("os.link", re.compile(r"/shared/\.base-[^/]+\.tmp")),
}

_released: list[Path] = []


class HeldNumbering(Numbering):
    """Numbering with so much state for each key that base snapshots are made, and a phase."""

    def init(self, handle: Any) -> None:
        super().init(handle)
        self._padding = handle.getValueState("padding", "bytes binary")
        if TaskContext.get() is not None:
            _note(f"at-{_partition()}", {})

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield from super().handleInputRows(key, rows, timerValues)
        hold("rows")
        self._padding.update((secrets.token_bytes(PADDING_BYTES),))


def hold(phase: str, file: str | None = None) -> None:
    """Wait at the FIFO if this phase is armed."""
    claim = _marks() / f"claim-{secrets.token_hex(4)}"
    try:
        (_marks() / f"armed-{phase}").rename(claim)
    except FileNotFoundError:
        return
    _note("held", {"phase": phase, "file": file})
    with (_marks() / "gate").open("rb") as gate:
        gate.read()
    _released.append(claim)


def _note(name: str, more: dict[str, Any]) -> None:
    """Write this task's identity into a mark that appears at once."""
    daemon = os.getppid()
    note = {
        "executor": int(Path(f"/proc/{daemon}/stat").read_text().rsplit(")", 1)[1].split()[1]),
        "worker": os.getpid(),
        "partition": _partition(),
        "local": os.environ["SPARK_LOCAL_DIRS"],
        **more,
    }
    hidden = _marks() / f"note-{secrets.token_hex(4)}"
    hidden.write_text(json.dumps(note))
    hidden.rename(_marks() / name)


def _partition() -> int:
    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def _marks() -> Path:
    return Path(os.environ[MARKS])


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.remove" and _released and "/.segment-" in os.fsdecode(arguments[0]):
        mark = _released.pop()  # the segment that it wrote has its name now
        mark.write_text(Path(os.fsdecode(arguments[0])).name)
        (_marks() / f"wrote-{os.getpid()}").write_text(mark.read_text())
        mark.rename(_marks() / "went-on")
    for phase, (watched, pattern) in _IN_FILES.items():
        if event == watched and not isinstance(arguments[0], int):
            path = os.fsdecode(arguments[0])
            if pattern.search(path):
                hold(phase, path)


if "SPARK_REUSE_WORKER" in os.environ:  # a Python worker, not the driver
    sys.addaudithook(_watch)
