"""One attempt at an epoch of a subtask, in a separate process that stops itself on its way.

``python subtask_program.py URL DIRECTORY BACKEND STOP_AT`` reads the committed handle and what the
epoch writes from its input, as JSON, and stops (SIGSTOP) at ``STOP_AT``: ``base`` or ``segment``,
written and not named yet, or ``handle``, when the segment has its name. When it continues, it
prints its handle. The file that it was writing may be deleted by then: it prints the error.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.storage.open import open_storage
from tests.unit.operator.materialized_subtask import ALWAYS, NEVER, MaterializedSubtask

STOPS = ("base", "segment", "handle")
_TEMPORARY = {"base": "/shared/.", "segment": "/taskowned/.segment-"}


def packed(handle: Handle) -> str:
    return base64.b64encode(encode_handle(handle)).decode()


def unpacked(text: str) -> Handle:
    return decode_handle(base64.b64decode(text))


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.stdin.readline()  # with several threads, this one may run on for a moment


def main(url: str, directory: str, backend_type: str, stop_at: str) -> None:
    given = json.loads(sys.stdin.readline())
    handle = unpacked(given["handle"])
    writes = {key.encode(): value.encode() for key, value in given["writes"].items()}
    waiting = [_TEMPORARY[stop_at]] if stop_at in _TEMPORARY else []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.link" and waiting and waiting[0] in os.fsdecode(arguments[0]):
            waiting.clear()
            stop()

    sys.addaudithook(watch)
    subtask = MaterializedSubtask(
        Path(directory),
        backend_type,
        open_storage(url),
        handle,
        ALWAYS if given["base"] else NEVER,
        uploads=None,
        number=handle.epoch,
    )
    try:
        made = subtask.attempt(writes)
    except OSError as exc:
        print(json.dumps({"error": str(exc)}), flush=True)
        return
    if stop_at == "handle":
        stop()
    print(json.dumps({"handle": packed(made)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
