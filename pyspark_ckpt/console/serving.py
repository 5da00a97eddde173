"""The process that serves the console of a driver: ``python -m pyspark_ckpt.console.serving``.

:func:`pyspark_ckpt.console.opening.open_console` starts it. It writes one line with its address,
and ends when its standard input does: when the console is closed, or its driver is gone.
"""

from __future__ import annotations

import os
import sys
import threading

import msgspec

from pyspark_ckpt.console.opening import NICENESS, Begun, open_server
from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage.open import open_storage


def main(directory: str, host: str, port: str) -> int:
    """Serve a directory until the standard input ends; return the exit status.

    Parameters
    ----------
    directory
        The path or URL of the directory.
    host, port
        Where it listens; port 0 takes any free port.
    """
    try:
        server, url = open_server(open_storage(directory), host=host, port=int(port))
    except ConfigurationError as exc:
        _say(Begun(error=str(exc)))
        return 1
    except OSError as exc:
        _say(Begun(error=str(exc), is_port_taken=True))
        return 1
    os.nice(NICENESS)  # not before the imports, which somebody waits for
    threading.Thread(target=_end_with_input, daemon=True).start()
    _say(Begun(url=url))
    server.run()
    return 0


def _say(begun: Begun) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(begun) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)  # it has only read, so there is nothing to complete


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
