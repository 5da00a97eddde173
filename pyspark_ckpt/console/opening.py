"""Opens a console. The libraries of the server are imported then, because they are an extra."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage.open import Storage

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 8270


@dataclass(frozen=True, slots=True)
class Console:
    """A console that is served in this process, until the process ends or it is closed.

    Parameters
    ----------
    url : str
        The address to open in a browser.
    close : callable
        Ends it.

    Examples
    --------
    >>> console = query.ui()
    >>> console.url.startswith("http://127.0.0.1:")
    True
    >>> console.close()
    """

    url: str
    close: Callable[[], None]

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noopener">{self.url}</a>'


def open_server(
    root: Storage, *, host: str, port: int, bundle: str | None = None
) -> tuple[Any, str]:
    """Return a server that listens and does not answer yet, and its address.

    Parameters
    ----------
    root
        The directory, or what was unpacked from a bundle.
    host, port
        Where it listens; port 0 takes any free port.
    bundle
        The path of the bundle, if it is one.

    Raises
    ------
    ConfigurationError
        If the extra ``ui`` is not installed.
    OSError
        If the port is in use.
    """
    try:
        from pyspark_ckpt.console.server import make_server
    except ImportError as exc:
        raise ConfigurationError(
            f"the console needs a library that is not installed ({exc}): install pyspark_ckpt[ui]"
        ) from exc
    return make_server(root, host=host, port=port, bundle=bundle)


def open_console(root: Storage, *, host: str, port: int) -> Console:
    """Serve a directory in a thread of this process; as :func:`open_server`."""
    server, url = open_server(root, host=host, port=port)
    is_closed = threading.Event()

    def serve() -> None:
        try:
            server.run()
        except OSError:  # its sockets were closed while it waited for requests
            if not is_closed.is_set():
                raise

    thread = threading.Thread(target=serve, name="pyspark_ckpt console", daemon=True)
    thread.start()

    def close() -> None:
        is_closed.set()
        server.close()

    return Console(url, close)
