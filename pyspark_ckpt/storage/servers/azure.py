"""A container of Azure Blob Storage or Data Lake Storage as a storage, through Azure's own client.

One request creates a blob with all of its content, and fails if the name is taken
(``If-None-Match: *``): a put, or for a large file the commit of its blocks. Credentials come from
the environment (``AZURE_STORAGE_...``), or from what ``DefaultAzureCredential`` finds.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage.base import Storage, path_parts
from pyspark_ckpt.storage.servers.remote import RemoteStorage, in_parts

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient, BlobServiceClient, ContainerClient

_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"
_KEY = "AZURE_STORAGE_ACCOUNT_KEY"
_SAS = "AZURE_STORAGE_SAS_TOKEN"

_RETRIES: dict[str, Any] = {
    "retry_total": 5,
    "retry_connect": 5,
    "retry_read": 5,
    "retry_status": 5,
    "initial_backoff": 0.2,
    "increment_base": 2,
    "random_jitter_range": 1,
}
"""Of a request that got no answer, or an error of the server: pauses of some 1 to 16 seconds."""

_WRITER = "writer"
_FOLDER = "hdi_isfolder"
"""The metadata of a directory, in an account with a hierarchical namespace."""

_CONTAINER = re.compile(r"\$?[a-z0-9](-?[a-z0-9])*")
_ENDPOINT = re.compile(
    r"(?P<account>[a-z0-9]+)\.(dfs|blob)\."
    r"(?P<domain>core\.(windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)|fabric\.microsoft\.com)"
)
"""Only Azure's own servers: a URL may come from a file, and its server gets a token."""

_CONDITION_FAILED = 412
_TAKEN = ("BlobAlreadyExists", "InvalidBlockList")
"""What Azure answers; the second if another writer's commit has discarded this one's blocks."""

_NO_CONTAINER = "ContainerNotFound"


class AzureStorage(RemoteStorage):
    """Blobs of one container whose names start with a prefix.

    `authority` is ``container@account.dfs.core.windows.net``, or only the container; then the
    environment names the account.
    """

    def __init__(self, scheme: str, authority: str, prefix: str = "") -> None:
        self._scheme = scheme
        container, _, endpoint = authority.partition("@")
        if _CONTAINER.fullmatch(container) is None or (
            endpoint and _ENDPOINT.fullmatch(endpoint) is None
        ):
            raise ConfigurationError(
                f"{scheme}://{container if endpoint else ''}...: this names no container; write "
                "abfss://container@account.dfs.core.windows.net/path or az://container/path, and "
                "keep credentials in the environment"
            )
        prefix = prefix.strip("/")
        parts = path_parts(prefix, f"{scheme}://{authority}") if prefix else ()
        root = "/".join((authority, *parts))
        super().__init__(f"{scheme}://{root}", root)
        service = _service(endpoint, os.getpid())
        self._container: ContainerClient = service.get_container_client(container)

    def _at(self, root: str) -> Storage:
        authority, _, prefix = root.partition("/")
        return AzureStorage(self._scheme, authority, prefix)

    def _create(self, relative: str, chunks: Iterable[bytes]) -> None:
        # If an answer was lost, the repeated request finds the name taken by this same writer.
        writer = {_WRITER: secrets.token_hex(16)}
        parts = in_parts(chunks)
        first = next(parts, b"")
        second = next(parts, None)
        blob = self._container.get_blob_client(_name(self._path(relative)))
        try:
            if second is None:
                self._counts.add("put")
                with self._errors_named(relative):
                    blob.upload_blob(first, overwrite=False, metadata=writer)
            else:
                self._upload(relative, blob, writer, chain([first, second], parts))
        except FileExistsError:
            self._counts.add("head")
            with self._errors_named(relative):
                found = blob.get_blob_properties().metadata
            if found != writer:
                raise

    def _upload(
        self, relative: str, blob: BlobClient, writer: dict[str, str], parts: Iterable[bytes]
    ) -> None:
        """Upload a file as blocks that no reader sees, and commit them.

        Azure discards the blocks of a writer that was killed after a week.
        """
        from azure.core import MatchConditions
        from azure.storage.blob import BlobBlock

        blocks = []
        for part in parts:
            block = secrets.token_hex(16)
            self._counts.add("put")
            with self._errors_named(relative):
                blob.stage_block(block, part, length=len(part))
            blocks.append(BlobBlock(block))
        missing = MatchConditions.IfMissing
        self._counts.add("put")
        with self._errors_named(relative):
            blob.commit_block_list(blocks, metadata=writer, match_condition=missing)

    def _content(self, path: str) -> bytes:
        return bytes(self._container.download_blob(_name(path)).readall())

    def _part(self, path: str, start: int, end: int) -> bytes:
        part = self._container.download_blob(_name(path), offset=start, length=end - start)
        return bytes(part.readall())

    def _look(self, path: str) -> int | None:
        blob = self._container.get_blob_client(_name(path))
        try:
            with _natural_errors():
                found = blob.get_blob_properties()
        except FileNotFoundError:
            if any(True for _ in self._names(path)):
                return None
            raise
        return None if _FOLDER in (found.metadata or {}) else int(found.size)

    def _names(self, path: str) -> set[str]:
        prefix = _prefix(path)
        with _natural_errors():
            found = self._container.walk_blobs(name_starts_with=prefix, delimiter="/")
            return {blob.name[len(prefix) :].strip("/") for blob in found} - {""}

    def _entries(self, path: str) -> dict[str, bool]:
        prefix = _prefix(path)
        found: dict[str, bool] = {}
        with _natural_errors():
            for blob in self._container.walk_blobs(name_starts_with=prefix, delimiter="/"):
                name = blob.name[len(prefix) :].strip("/")
                # A hierarchical namespace also has a blob for the directory of what is in it.
                found[name] = found.get(name, False) or blob.name.endswith("/")
        found.pop("", None)
        return found

    def _delete(self, path: str) -> None:
        with _natural_errors():
            self._container.delete_blob(_name(path))

    def _delete_below(self, path: str) -> None:
        with _natural_errors():
            below = sorted(self._container.list_blob_names(name_starts_with=_prefix(path)))
        # With a hierarchical namespace, a directory is deleted after what is in it.
        for name in reversed(below):
            # It is not found if it was deleted before, and that answer got lost.
            with suppress(FileNotFoundError), _natural_errors():
                self._container.delete_blob(name)

    def files_below(self, directory: str) -> tuple[str, ...]:
        prefix = _prefix(self._path(directory))
        with self._errors_named(directory):
            found = list(self._container.list_blobs(prefix, include=["metadata"]))
        names = [blob.name[len(prefix) :] for blob in found if _FOLDER not in (blob.metadata or {})]
        return tuple(f"{directory}/{name}" for name in sorted(names))

    def fingerprint(self, relative: str) -> str:
        with self._errors_named(relative):
            found = self._container.get_blob_client(_name(self._path(relative)))
            properties = found.get_blob_properties()
        return f"{properties.etag} {properties.size}"

    def _is_no_place(self, error: FileNotFoundError) -> bool:
        return _NO_CONTAINER in str(error)

    @contextmanager
    def _errors_named(self, relative: str | None) -> Iterator[None]:
        with super()._errors_named(relative), _natural_errors():
            yield


@contextmanager
def _natural_errors() -> Iterator[None]:
    """Raise the natural ``OSError`` for an error of Azure's client."""
    from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError

    try:
        yield
    except ClientAuthenticationError as exc:
        raise PermissionError(_said(exc)) from exc
    except HttpResponseError as exc:
        if exc.status_code == _CONDITION_FAILED or _code(exc) in _TAKEN:
            raise FileExistsError(_said(exc)) from exc
        natural = {403: PermissionError, 404: FileNotFoundError}.get(exc.status_code or 0, OSError)
        raise natural(_said(exc)) from exc
    except AzureError as exc:
        raise OSError(f"{type(exc).__name__}: {_said(exc)}") from exc


def _said(error: Any) -> str:
    """Return the first line of a message, and the server's code; the rest is its answer in XML."""
    code = _code(error)
    first = str(error).strip().partition("\n")[0]
    return f"{first} ({code})" if code else first


def _code(error: Any) -> Any:
    code = getattr(error, "error_code", None)
    return getattr(code, "value", code)


def _name(path: str) -> str:
    """Return the name of a blob in its container."""
    return path.partition("/")[2]


def _prefix(path: str) -> str:
    name = _name(path)
    return f"{name}/" if name else ""


@cache
def _service(endpoint: str, process: int) -> BlobServiceClient:  # noqa: ARG001  # a fork has its own
    """Return the client of an account; there is one in each process."""
    try:
        from azure.storage.blob import BlobServiceClient
    except ImportError as exc:
        raise ConfigurationError(
            "abfss:// and az:// need azure-storage-blob: install pyspark_ckpt[azure] for the "
            "driver and the executors"
        ) from exc
    matched = _ENDPOINT.fullmatch(endpoint)
    account = matched["account"] if matched else os.environ.get(_ACCOUNT)
    connection = os.environ.get(_CONNECTION)
    if connection:
        service = BlobServiceClient.from_connection_string(connection, **_RETRIES)
        if account in (None, service.account_name):
            return service
    if account is None:
        raise ConfigurationError(
            f"az:// needs the account: set {_ACCOUNT} or {_CONNECTION} on the driver and the "
            "executors, or write abfss://container@account.dfs.core.windows.net/path"
        )
    domain = matched["domain"] if matched else "core.windows.net"
    url = f"https://{account}.blob.{domain}"
    return BlobServiceClient(url, credential=_credential(), **_RETRIES)


def _credential() -> Any:
    """Return a key or token of the environment, else what finds an identity of the machine."""
    key = os.environ.get(_KEY) or os.environ.get(_SAS)
    if key:
        return key
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as exc:
        raise ConfigurationError(
            f"no credentials for Azure: set {_CONNECTION}, {_KEY} or {_SAS} on the driver and the "
            "executors, or install pyspark_ckpt[azure], which brings azure-identity"
        ) from exc
    return DefaultAzureCredential()
