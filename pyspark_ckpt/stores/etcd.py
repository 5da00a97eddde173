"""Pointers in etcd, for installations that have one.

::

    <path.root>/<query id>/driver          its revision says which driver may write
    <path.root>/<query id>/last_id         the highest id that was reserved
    <path.root>/<query id>/completed/<id>  the directory of a completed checkpoint

Each change is one transaction that also compares the revision of ``driver``. Therefore a fenced
driver changes nothing, even if its request comes late. No lease or clock is involved.

The driver speaks to etcd's JSON gateway, because no client for Python is well kept. Certificates
are those of ``etcdctl``: the environment's ``ETCDCTL_CACERT``, ``ETCDCTL_CERT``, ``ETCDCTL_KEY``.
"""

from __future__ import annotations

import json
import os
import secrets
from base64 import b64decode, b64encode
from typing import Any

from pyspark_ckpt.errors import ConfigurationError, FencedError
from pyspark_ckpt.stores.pointed import Pointers

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_OK = 200
_PATIENCE_ROUNDS = 3
"""How often all servers are asked before a request fails; a change is sent once only."""


class EtcdPointers(Pointers):
    """One driver's view of a query's pointers in etcd.

    Nothing is written to etcd before :meth:`claim`.

    `endpoints` has the URLs of the servers, ``http://host:port`` or ``https://host:port``, with
    commas between.
    """

    def __init__(self, endpoints: str, path: str) -> None:
        self._endpoints = endpoints.split(",")
        self._path = path.rstrip("/")
        self._http = _client()
        self._revision: int | None = None
        self._get("driver")

    def claim(self) -> None:
        answer = self._change(
            "/v3/kv/put", {**self._key("driver"), **_value(secrets.token_hex(16))}
        )
        self._revision = int(answer["header"]["revision"])

    def check(self) -> None:
        found = self._get("driver")
        if found is None or int(found["mod_revision"]) != self._revision:
            raise self._fenced()

    def last_id(self) -> int:
        return self._last_id()[0]

    def reserve(self, checkpoint_id: int) -> None:
        last_id, revision = self._last_id()
        if checkpoint_id <= last_id:
            raise FileExistsError(f"{self._where}: chk-{checkpoint_id} is in use")
        self._transact(
            self._compared("last_id", mod_revision=revision),
            {"requestPut": {**self._key("last_id"), **_value(str(checkpoint_id))}},
            f"chk-{checkpoint_id} is in use",
        )

    def put(self, checkpoint_id: int, url: str) -> None:
        name = f"completed/{checkpoint_id}"
        self._transact(
            self._compared(name, mod_revision=0),
            {"requestPut": {**self._key(name), **_value(url)}},
            "it is complete already",
        )

    def delete(self, checkpoint_id: int) -> None:
        key = self._key(f"completed/{checkpoint_id}")
        self._transact(None, {"requestDeleteRange": key}, "")

    def ids(self) -> list[int]:
        first = f"{self._path}/completed/"
        asked = {"key": _encoded(first), "range_end": _encoded(first[:-1] + "0"), "keys_only": True}
        found = self._ask("/v3/kv/range", asked).get("kvs", [])
        return sorted(int(_decoded(each["key"]).removeprefix(first)) for each in found)

    def close(self) -> None:
        self._http.clear()

    @property
    def _where(self) -> str:
        return f"etcd {','.join(self._endpoints)}, {self._path}"

    def _key(self, name: str) -> dict[str, str]:
        return {"key": _encoded(f"{self._path}/{name}")}

    def _compared(self, name: str, *, mod_revision: int) -> dict[str, Any]:
        """Return the condition that a key was last changed by a revision; 0 if there is no key."""
        target = {"target": "MOD", "result": "EQUAL", "mod_revision": str(mod_revision)}
        return {**self._key(name), **target}

    def _get(self, name: str) -> dict[str, Any] | None:
        found = self._ask("/v3/kv/range", self._key(name)).get("kvs")
        return found[0] if found else None

    def _last_id(self) -> tuple[int, int]:
        found = self._get("last_id")
        return (0, 0) if found is None else (
            int(_decoded(found["value"])), int(found["mod_revision"])
        )  # fmt: skip

    def _transact(
        self, condition: dict[str, Any] | None, change: dict[str, Any], otherwise: str
    ) -> None:
        """Change something unless this driver is fenced or the condition does not hold."""
        compare = [] if condition is None else [condition]
        if self._revision is not None:
            compare.append(self._compared("driver", mod_revision=self._revision))
        failure = [{"requestRange": self._key("driver")}]
        answer = self._change(
            "/v3/kv/txn", {"compare": compare, "success": [change], "failure": failure}
        )
        if answer.get("succeeded"):
            return
        found = answer["responses"][0]["response_range"].get("kvs", [{"mod_revision": "0"}])
        if self._revision is not None and int(found[0]["mod_revision"]) != self._revision:
            raise self._fenced()
        raise FileExistsError(f"{self._where}: {otherwise}")

    def _ask(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request that changes nothing, which may be repeated."""
        return self._sent(path, request, self._endpoints * _PATIENCE_ROUNDS, repeats=True)

    def _change(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request that is sent once; it may work although this raises."""
        return self._sent(path, request, self._endpoints, repeats=False)

    def _sent(
        self, path: str, request: dict[str, Any], endpoints: list[str], *, repeats: bool
    ) -> dict[str, Any]:
        """Send a request to one server after the other, until one answers."""
        error: Exception | None = None
        for endpoint in endpoints:
            answer, error = self._answer(f"{endpoint}{path}", request)
            if answer is not None:
                return answer
            if not repeats and not _was_not_sent(error):
                break  # it may have been carried out
        raise OSError(
            f"{self._where}: {type(error).__name__} {error}; see that its servers are up, and that "
            "spark.ckpt.high-availability.etcd.endpoints names them"
        ) from error

    def _answer(
        self, url: str, request: dict[str, Any]
    ) -> tuple[dict[str, Any] | None, Exception | None]:
        """Return what a server answered, or why there is no answer."""
        from urllib3.exceptions import HTTPError

        try:
            answer = self._http.request(
                "POST", url, body=json.dumps(request).encode(), retries=False
            )
            content = json.loads(answer.data)
        except (HTTPError, OSError, ValueError) as exc:
            return None, exc
        if answer.status != _OK or not isinstance(content, dict):
            return None, OSError(f"{url} answered {answer.status}: {answer.data[:300]!r}")
        return content, None

    def _fenced(self) -> FencedError:
        return FencedError(
            f"{self._where}: another driver has taken over these checkpoints; run a query once at "
            "a time, and stop this one"
        )


def _client() -> Any:
    try:
        import urllib3
    except ImportError as exc:
        raise ConfigurationError(
            "high-availability.type etcd needs urllib3: install pyspark_ckpt[etcd] for the driver"
        ) from exc
    return urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_ANSWER_SECONDS),
        ca_certs=os.environ.get("ETCDCTL_CACERT"),
        cert_file=os.environ.get("ETCDCTL_CERT"),
        key_file=os.environ.get("ETCDCTL_KEY"),
    )


def _was_not_sent(error: Exception | None) -> bool:
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    return isinstance(error, (ConnectTimeoutError, NewConnectionError))


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _decoded(text: str) -> str:
    return b64decode(text).decode()


def _value(text: str) -> dict[str, str]:
    return {"value": _encoded(text)}
