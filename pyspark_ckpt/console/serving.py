"""The process that serves the console of a driver: ``python -m pyspark_ckpt.console.serving``.

:func:`pyspark_ckpt.console.opening.open_console` starts it. It writes one line with its address,
and ends when its standard input does: when the console is closed, or its driver is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from pyspark_ckpt.console.opening import Begun, open_server
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.storage.open import open_storage

NICENESS = 19
_AUTOGROUP = Path("/proc/self/autogroup")
"""Linux may share processors among sessions first; then a niceness counts within a session only."""


def main(directory: str, host: str, port: str, bundle: str = "") -> int:
    """Serve a directory until the standard input ends; return the exit status."""
    try:
        root = open_storage(directory)
        server, url = open_server(root, host=host, port=int(port), bundle=bundle or None)
    except CkptError as exc:
        _say(Begun(error=str(exc)))
        return 1
    except OSError as exc:
        _say(Begun(error=str(exc), is_port_taken=True))
        return 1
    _step_back()  # not before the imports, which somebody waits for
    threading.Thread(target=_end_with_input, daemon=True).start()
    _say(Begun(url=url))
    server.run()
    return 0


def _step_back() -> None:
    """Run only when no other program wants the processor, such as a query."""
    os.nice(NICENESS)
    with suppress(OSError):  # another kernel, or another Linux without it
        _AUTOGROUP.write_text(str(NICENESS))


def _say(begun: Begun) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(begun) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)  # it has only read, so there is nothing to complete


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
