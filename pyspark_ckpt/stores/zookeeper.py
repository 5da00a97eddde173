"""Pointers in ZooKeeper, for installations that run ZooKeeper.

::

    <path.root>/<query id>/
      driver              its version shows which driver may write
      last_id             the highest id that was reserved
      completed/<id>      the directory of a completed checkpoint

Each change is one transaction that also checks the version of ``driver``. Therefore a fenced driver
changes nothing, even if its request arrives late. No session or clock is involved.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark_ckpt.errors import ConfigurationError, FencedError
from pyspark_ckpt.stores.pointed import Pointers

_CONNECT_SECONDS = 15.0
_ANSWER_SECONDS = 30.0


class ZooKeeperPointers(Pointers):
    """One driver's view of a query's pointers in ZooKeeper.

    Nothing is created in ZooKeeper before :meth:`claim`.

    `quorum` has the servers as ``host:port``, with commas between.
    """

    def __init__(self, quorum: str, path: str) -> None:
        self._quorum = quorum
        self._path = path.rstrip("/")
        self._client = _client(quorum)
        self._is_connected = False
        self._version: int | None = None
        self._connect()

    def claim(self) -> None:
        from kazoo.exceptions import BadVersionError

        author = secrets.token_hex(16).encode()
        node = f"{self._path}/driver"
        with self._errors_named():
            for name in ("driver", "last_id", "completed"):
                self._ask("ensure_path", f"{self._path}/{name}")
            while True:
                _, status = self._ask("get", node)
                try:
                    self._version = self._ask("set", node, author, status.version).version
                except BadVersionError:
                    continue  # another driver was first: the next round fences it
                return

    def check(self) -> None:
        with self._errors_named():
            self._ask("sync", self._path)
            _, status = self._ask("get", f"{self._path}/driver")
        if status.version != self._version:
            raise self._fenced()

    def last_id(self) -> int:
        return self._last_id()[0]

    def reserve(self, checkpoint_id: int) -> None:
        last_id, version = self._last_id()
        if checkpoint_id <= last_id:
            raise FileExistsError(f"{self._where}: chk-{checkpoint_id} is in use")
        with self._changing() as change:
            change.set_data(f"{self._path}/last_id", str(checkpoint_id).encode(), version)

    def put(self, checkpoint_id: int, url: str) -> None:
        with self._changing() as change:
            change.create(self._node(checkpoint_id), url.encode())

    def delete(self, checkpoint_id: int) -> None:
        if checkpoint_id in self.ids():
            with self._changing() as change:
                change.delete(self._node(checkpoint_id))
        elif self._version is not None:
            self.check()

    def ids(self) -> list[int]:
        from kazoo.exceptions import NoNodeError

        with self._errors_named():
            self._ask("sync", "/")
            try:
                return sorted(map(int, self._ask("get_children", f"{self._path}/completed")))
            except NoNodeError:  # no driver has claimed it yet
                return []

    def close(self) -> None:
        self._client.stop()
        self._is_connected = False

    @property
    def _where(self) -> str:
        return f"ZooKeeper {self._quorum}, {self._path}"

    def _node(self, checkpoint_id: int) -> str:
        return f"{self._path}/completed/{checkpoint_id}"

    def _last_id(self) -> tuple[int, int]:
        from kazoo.exceptions import NoNodeError

        with self._errors_named():
            self._ask("sync", "/")
            try:
                data, status = self._ask("get", f"{self._path}/last_id")
            except NoNodeError:  # no driver has claimed it yet
                return 0, 0
        return int(data or 0), status.version

    @contextmanager
    def _changing(self) -> Iterator[Any]:
        """Yield a transaction that is committed at the end, unless this driver is fenced."""
        from kazoo.exceptions import NodeExistsError, RolledBackError

        with self._errors_named():
            change = self._client.transaction()
            change.check(f"{self._path}/driver", -1 if self._version is None else self._version)
            yield change
            fence, result = change.commit_async().get(timeout=_ANSWER_SECONDS)
        if fence is not True and not isinstance(fence, RolledBackError):
            raise self._fenced()
        if isinstance(result, NodeExistsError):
            raise FileExistsError(f"{self._where}: the checkpoint is complete already")
        if isinstance(result, Exception):
            raise OSError(f"{self._where}: {type(result).__name__} {result}")

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        from kazoo.exceptions import KazooException

        self._connect()
        try:
            yield
        except (KazooException, self._client.handler.timeout_exception) as exc:
            raise OSError(
                f"{self._where}: {type(exc).__name__} {exc}; check that its servers run"
            ) from exc

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the client with a time limit; it may be repeated."""

        def ask() -> Any:
            answer = getattr(self._client, f"{method}_async")(*arguments)
            return answer.get(timeout=_ANSWER_SECONDS)

        return self._client.retry(ask)

    def _connect(self) -> None:
        if self._is_connected:
            return
        try:
            self._client.start(timeout=_CONNECT_SECONDS)
        except self._client.handler.timeout_exception as exc:
            raise OSError(
                f"ZooKeeper {self._quorum} cannot be reached: check that its servers run, and "
                "that spark.ckpt.high-availability.zookeeper.quorum names them"
            ) from exc
        self._is_connected = True

    def _fenced(self) -> FencedError:
        return FencedError(
            f"{self._where}: another driver has taken over these checkpoints. Run a query once at "
            "a time: stop this one"
        )


def _client(quorum: str) -> Any:
    try:
        from kazoo.client import KazooClient
    except ImportError as exc:
        raise ConfigurationError(
            "spark.ckpt.high-availability.type zookeeper needs kazoo, which is not installed: "
            "install pyspark_ckpt[zookeeper] for the driver"
        ) from exc
    # Reconnects soon after servers return, and with a new session if the last one has expired.
    return KazooClient(
        hosts=quorum,
        connection_retry={"max_tries": -1, "max_delay": 1.0},
        command_retry={"max_tries": 5, "delay": 0.2, "max_delay": 1.0},
    )
