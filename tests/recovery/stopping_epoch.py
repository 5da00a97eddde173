"""An epoch in which a driver program stops for ever, and the kill that it waits for."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from tests.recovery.processes import kill_all

DEADLINE_SECONDS = 240
_STOPPED = "stopped"


def epochs_written(work: Path, where: str) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each epoch to ``epoch-<number>``.

    An epoch that runs again must have the rows that it had. In the epoch whose number is `where`
    the program stops for ever, after its actions and before Spark commits it.
    """

    def write(batch: DataFrame, epoch: int) -> None:
        found = sorted(json.dumps(row.asDict()) for row in batch.collect())
        written, text = work / f"epoch-{epoch}", "\n".join(found)
        if written.exists():
            assert written.read_text() == text, f"epoch {epoch}: {written.read_text()} or {text}"
        hidden = work / f".epoch-{epoch}"
        hidden.write_text(text)
        hidden.rename(written)
        if where == str(epoch):
            (work / _STOPPED).touch()
            while True:
                signal.pause()

    return write


def kill_when_stopped(driver: subprocess.Popen[str], work: Path, epoch: int) -> None:
    """Kill a driver with all its processes once it has stopped in an epoch."""
    stopped = work / _STOPPED
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while not stopped.exists():
            assert driver.poll() is None, "the program has ended"
            assert time.monotonic() < deadline, f"the program did not reach epoch {epoch}"
            time.sleep(0.02)
    finally:
        kill_all(driver)
        driver.wait()
    stopped.unlink()
