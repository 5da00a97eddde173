"""Pointers in a ConfigMap of Kubernetes, for drivers that run there.

A query has one ConfigMap, ``pyspark-ckpt-<query id>``::

    driver           a name that no other driver has: this driver may write
    last_id          the highest id that was reserved
    completed.<id>   the directory of a completed checkpoint

Each change replaces the whole ConfigMap as it was read. The server refuses the change if the
``resourceVersion`` is an older one; then the ConfigMap is read again. Therefore a fenced driver
changes nothing, even if its request comes late. No lease or clock is involved.

The client finds the server as all clients do: from the pod's service account, else from
``KUBECONFIG``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark_ckpt.errors import ConfigurationError, FencedError
from pyspark_ckpt.stores.pointed import Pointers

_ANSWER_SECONDS = 30.0
_NOT_FOUND = 404
_CONFLICT = 409
_OF_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_COMPLETED = "completed."
_LABELS = {"app.kubernetes.io/managed-by": "pyspark-ckpt"}


class KubernetesPointers(Pointers):
    """One driver's view of a query's pointers in a ConfigMap.

    Nothing is created in Kubernetes before :meth:`claim`.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self._namespace, self._name = namespace, name
        self._client = _client()
        self._author: str | None = None
        self._read()

    def claim(self) -> None:
        author = secrets.token_hex(16)

        def take_over(data: dict[str, str]) -> None:
            data["driver"] = author

        self._change(take_over, claims=True)
        self._author = author

    def check(self) -> None:
        self._check(self._data())

    def last_id(self) -> int:
        return _last_id(self._data())

    def reserve(self, checkpoint_id: int) -> None:
        def raise_last_id(data: dict[str, str]) -> None:
            if checkpoint_id <= _last_id(data):
                raise FileExistsError(f"{self._where}: chk-{checkpoint_id} is in use")
            data["last_id"] = str(checkpoint_id)

        self._change(raise_last_id)

    def put(self, checkpoint_id: int, url: str) -> None:
        def point(data: dict[str, str]) -> None:
            if f"{_COMPLETED}{checkpoint_id}" in data:
                raise FileExistsError(f"{self._where}: chk-{checkpoint_id} is complete already")
            data[f"{_COMPLETED}{checkpoint_id}"] = url

        self._change(point)

    def delete(self, checkpoint_id: int) -> None:
        data = self._data()
        self._check(data)
        if f"{_COMPLETED}{checkpoint_id}" in data:
            self._change(lambda data: data.pop(f"{_COMPLETED}{checkpoint_id}", None))

    def ids(self) -> list[int]:
        names = [name for name in self._data() if name.startswith(_COMPLETED)]
        return sorted(int(name.removeprefix(_COMPLETED)) for name in names)

    def close(self) -> None:
        self._client.api_client.rest_client.pool_manager.clear()

    @property
    def _where(self) -> str:
        return f"ConfigMap {self._name} in the namespace {self._namespace}"

    def _data(self) -> dict[str, str]:
        found = self._read()
        return {} if found is None else dict(found.data or {})

    def _read(self) -> Any:
        """Return the ConfigMap, ``None`` before the first driver."""
        from kubernetes.client.exceptions import ApiException

        with self._errors_named():
            try:
                return self._client.read_namespaced_config_map(
                    self._name, self._namespace, _request_timeout=_ANSWER_SECONDS
                )
            except ApiException as exc:
                if exc.status == _NOT_FOUND:
                    return None
                raise

    def _change(self, change: Callable[[dict[str, str]], object], *, claims: bool = False) -> None:
        """Change the data; with each conflict it is read and changed again."""
        while True:
            found = self._read()
            data = {} if found is None else dict(found.data or {})
            if not claims:
                self._check(data)
            change(data)
            if self._write(found, data):
                return

    def _write(self, found: Any, data: dict[str, str]) -> bool:
        """Write the ConfigMap unless it was changed since it was read."""
        from kubernetes.client.exceptions import ApiException

        metadata: dict[str, Any] = {"name": self._name, "labels": _LABELS}
        if found is not None:
            metadata["labels"] = {**(found.metadata.labels or {}), **_LABELS}
            metadata["annotations"] = found.metadata.annotations
            metadata["resourceVersion"] = found.metadata.resource_version
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        with self._errors_named():
            try:
                if found is None:
                    self._client.create_namespaced_config_map(
                        self._namespace, body, _request_timeout=_ANSWER_SECONDS
                    )
                else:
                    self._client.replace_namespaced_config_map(
                        self._name, self._namespace, body, _request_timeout=_ANSWER_SECONDS
                    )
            except ApiException as exc:
                # A ConfigMap that was deleted by then is made anew, as by a first driver.
                if exc.status in (_CONFLICT, _NOT_FOUND) and self._read() is not None:
                    return False
                raise
        return True

    def _check(self, data: dict[str, str]) -> None:
        if self._author is not None and data.get("driver") != self._author:
            raise FencedError(
                f"{self._where}: another driver has taken over these checkpoints; run a query once "
                "at a time, and stop this one"
            )

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as exc:
            raise OSError(
                f"{self._where}: the server answered {exc.status} {exc.reason}; see that the "
                "driver's service account may get, create and update ConfigMaps"
            ) from exc
        except HTTPError as exc:
            raise OSError(
                f"{self._where}: {type(exc).__name__} {exc}; see that the API server can be reached"
            ) from exc


def namespace_of_driver() -> str:
    """Return the namespace of the driver's pod, else that of the current context."""
    if _OF_POD.is_file():
        return _OF_POD.read_text().strip()
    config, _ = _library()
    try:
        _, context = config.list_kube_config_contexts(config_file=_config_file())
    except config.ConfigException as exc:
        raise _no_configuration(exc) from exc
    return str(context["context"].get("namespace", "default"))


def _last_id(data: dict[str, str]) -> int:
    return int(data.get("last_id", "0"))


def _client() -> Any:
    config, client = _library()
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            config.load_kube_config(config_file=_config_file(), client_configuration=configuration)
        except config.ConfigException as exc:
            raise _no_configuration(exc) from exc
    configuration.retries = False  # a change whose answer is lost is not sent again
    return client.CoreV1Api(client.ApiClient(configuration))


def _config_file() -> str | None:
    """Return the files of ``KUBECONFIG`` as they are now; the client reads it when imported."""
    return os.environ.get("KUBECONFIG")


def _library() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ImportError as exc:
        raise ConfigurationError(
            "high-availability.type kubernetes needs kubernetes: install pyspark_ckpt[kubernetes] "
            "for the driver"
        ) from exc
    return config, client


def _no_configuration(error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"high-availability.type kubernetes finds no API server ({error}): run the driver in a "
        "pod, or set KUBECONFIG"
    )
