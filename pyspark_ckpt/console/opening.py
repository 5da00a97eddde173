"""Opens a console. The libraries of the server are imported then, because they are an extra."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pyspark_ckpt.errors import CkptError, ConfigurationError
from pyspark_ckpt.storage.open import Storage

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8270
SERVING = "pyspark_ckpt.console.serving"
"""The module that a console's own process runs."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The first line that a console's process writes: its address, or the error."""

    url: str | None = None
    error: str = ""
    is_port_taken: bool = False


@dataclass(frozen=True, slots=True)
class Console:
    """A console that is served until this process ends or it is closed.

    `wait` returns once the console was closed, and raises :class:`CkptError` if its process ended
    by itself. `close` ends the console.
    """

    url: str
    close: Callable[[], None]
    wait: Callable[[], None]

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noopener">{self.url}</a>'


def open_server(
    root: Storage, *, host: str, port: int, bundle: str | None = None
) -> tuple[Any, str]:
    """Return a server that listens and does not answer yet, and its address.

    Port 0 takes any free port. It raises ``OSError`` if the port is in use.
    """
    try:
        from pyspark_ckpt.console.server import make_server
    except ImportError as exc:
        raise ConfigurationError(
            f"the console needs a library that is not installed ({exc}): install pyspark_ckpt[ui]"
        ) from exc
    return make_server(root, host=host, port=port, bundle=bundle)


def open_console(directory: str, *, host: str, port: int, bundle: str | None = None) -> Console:
    """Serve a directory in a separate process, which ends with this one; as :func:`open_server`.

    It is a process because a server in this one would take turns with the threads of a driver. It
    has a separate session, so that its low priority counts for it only, and for all of it.
    """
    process = subprocess.Popen(  # noqa: S603  # this Python, and a module of this library
        [sys.executable, "-m", SERVING, directory, host, str(port), bundle or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # the interruption of a notebook's cell does not end it
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answer = process.stdout.readline()
    process.stdout.close()

    def close() -> None:
        assert process.stdin is not None
        process.stdin.close()  # it ends at the end of its input
        process.wait()

    def ended_by_itself() -> CkptError:
        return CkptError(
            f"the process that serves the console of {directory} ended with exit code "
            f"{process.returncode}: its error is on this process's standard error"
        )

    if not answer:
        close()
        raise ended_by_itself()
    begun = msgspec.json.decode(answer, type=Begun)
    if begun.url is None:
        close()
        raise (OSError if begun.is_port_taken else ConfigurationError)(begun.error)

    def wait() -> None:
        if process.wait() != 0:
            raise ended_by_itself()

    return Console(begun.url, close, wait)
