"""A driver in a separate process that stops itself at one operation.

``python driver_program.py URL SETTINGS CHECKPOINTS OPERATION OCCURRENCE`` takes this many
checkpoints. It stops before the n-th occurrence of the operation (``before OPERATION``) or after it
(``after OPERATION``), and prints the result of each checkpoint as a JSON line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.storage.open import Storage, open_storage
from tests.faults.epochs import Epochs
from tests.faults.faulty_storage import FaultyStorage, Plan


class StoppingStorage(FaultyStorage):
    """Stops this process at one operation."""

    def __init__(self, inner: Storage, stop_at: str, occurrence: int) -> None:
        super().__init__(inner, Plan())
        self._when, _, self._name = stop_at.partition(" ")
        self._left = occurrence

    def _do(self, name: str, operation: Callable[[], Any], cut: Any = None) -> Any:
        self._left -= name == self._name
        is_due = name == self._name and self._left == 0
        if is_due and self._when == "before":
            self._stop()
        result = operation()
        if is_due and self._when == "after":
            self._stop()
        return result

    @staticmethod
    def _stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        # With several threads, this one may run on for a moment: it waits for a line of its input.
        sys.stdin.readline()


def main(url: str, settings: str, checkpoints: str, stop_at: str, occurrence: str) -> None:
    storage = StoppingStorage(open_storage(url), stop_at, int(occurrence))
    epochs = Epochs(storage)
    runner = epochs.runner(**json.loads(settings))
    for _ in range(int(checkpoints)):
        epochs.commit()
        try:
            taken = runner.take(epochs.committed_epoch, periodic=False)
        except CheckpointAbortedError as exc:
            report = {"reason": exc.reason.value if exc.reason else None, "message": str(exc)}
        else:
            assert isinstance(taken, CompletedCheckpoint)
            report = {"completed": taken.checkpoint_id}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
