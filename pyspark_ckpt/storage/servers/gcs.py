"""A bucket of Google Cloud Storage as a storage, through its JSON API.

One request creates an object with all of its content, and fails if the name is taken
(``ifGenerationMatch=0``), also a large object. Google's own client sends a large object in several
requests, so only Google's library for credentials is used here (docs/design/storages.md).
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import quote

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage.base import AT_ONCE, CHUNK_BYTES, Storage, path_parts
from pyspark_ckpt.storage.servers.remote import READ_BYTES, RemoteStorage

if TYPE_CHECKING:
    from requests import Response, Session

_EMULATOR = "STORAGE_EMULATOR_HOST"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_WRITER = "writer"

_ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 0.2
_TIMEOUT_SECONDS = (10, 120)
_REPEATED_STATUSES = (408, 429, 500, 502, 503, 504)
_NATURAL = {401: PermissionError, 403: PermissionError, 404: FileNotFoundError}
_TAKEN = 412


class GcsStorage(RemoteStorage):
    """Objects of one bucket whose names start with a prefix."""

    _directory_ending = "/"  # of the object that Hadoop makes for a directory itself

    def __init__(self, bucket: str, prefix: str = "") -> None:
        if _BUCKET.fullmatch(bucket) is None:
            raise ConfigurationError(
                f"gs://{bucket.rpartition('@')[2]}/...: this is not a bucket's name; write "
                "gs://bucket/prefix, and keep credentials in the environment"
            )
        prefix = prefix.strip("/")
        parts = path_parts(prefix, f"gs://{bucket}") if prefix else ()
        root = "/".join((bucket, *parts))
        super().__init__(f"gs://{root}", root)
        self._session = _session(os.getpid())
        self._server = os.environ.get(_EMULATOR, "https://storage.googleapis.com").rstrip("/")
        self._objects = f"{self._server}/storage/v1/b/{bucket}/o"
        self._uploads = f"{self._server}/upload/storage/v1/b/{bucket}/o"

    def _at(self, root: str) -> Storage:
        bucket, _, prefix = root.partition("/")
        return GcsStorage(bucket, prefix)

    def _create(self, relative: str, chunks: Iterable[bytes]) -> None:
        # If an answer was lost, the repeated request finds the name taken by this same writer.
        writer = {_WRITER: secrets.token_hex(16)}
        path = self._path(relative)
        with tempfile.SpooledTemporaryFile(max_size=READ_BYTES) as file:
            for chunk in chunks:
                file.write(chunk)
            size_bytes = file.tell()
            self._counts.add("put")
            with self._errors_named(relative):
                try:
                    self._upload(_name(path), writer, cast("IO[bytes]", file), size_bytes)
                except FileExistsError:
                    self._counts.add("head")
                    if self._found(path, "metadata").get("metadata") != writer:
                        raise

    def _upload(self, name: str, writer: dict[str, str], file: IO[bytes], size_bytes: int) -> None:
        """Send an object and its metadata in one request, which is repeated as a whole."""
        boundary = secrets.token_hex(16)
        described = json.dumps({"name": name, "metadata": writer})
        body = _Body(
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{described}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n",
            file,
            size_bytes,
            f"\r\n--{boundary}--\r\n",
        )
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        asked = {"uploadType": "multipart", "ifGenerationMatch": "0"}
        self._request("POST", self._uploads, params=asked, headers=headers, data=body)

    def _content(self, path: str) -> bytes:
        return bytes(self._request("GET", self._url(path), params={"alt": "media"}).content)

    def _part(self, path: str, start: int, end: int) -> bytes:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        answer = self._request("GET", self._url(path), params={"alt": "media"}, headers=headers)
        return bytes(answer.content)

    def _look(self, path: str) -> int | None:
        try:
            return int(self._found(path, "size")["size"])
        except FileNotFoundError:
            prefix = _prefix(path)
            pages = self._pages(prefix, maxResults="1")  # a page may be empty before others
            if prefix and not any(page.get("items") for page in pages):
                raise
            return None

    def _names(self, path: str) -> Iterable[str]:
        return self._entries(path)

    def _entries(self, path: str) -> dict[str, bool]:
        prefix = _prefix(path)
        files: set[str] = set()
        directories: set[str] = set()
        for page in self._pages(prefix, delimiter="/"):
            files |= {item["name"][len(prefix) :] for item in page.get("items", [])}
            directories |= {name[len(prefix) :].strip("/") for name in page.get("prefixes", [])}
        found = dict.fromkeys(files, False) | dict.fromkeys(directories, True)
        found.pop("", None)
        return found

    def _delete(self, path: str) -> None:
        self._request("DELETE", self._url(path))

    def _delete_below(self, path: str) -> None:
        for page in self._pages(_prefix(path)):
            for item in page.get("items", []):
                with suppress(FileNotFoundError):  # deleted before, if its answer got lost
                    self._request("DELETE", f"{self._objects}/{quote(item['name'], safe='')}")

    def files_below(self, directory: str) -> tuple[str, ...]:
        prefix = _prefix(self._path(directory))
        with self._errors_named(directory):
            pages = list(self._pages(prefix))
        names = [item["name"] for page in pages for item in page.get("items", [])]
        # Hadoop makes an object for a directory itself, whose name has a slash at its end.
        files = sorted(name[len(prefix) :] for name in names if not name.endswith("/"))
        return tuple(f"{directory}/{name}" for name in files)

    def fingerprint(self, relative: str) -> str:
        with self._errors_named(relative):
            found = self._found(self._path(relative), "generation,size")
        return f"{found['generation']} {found['size']}"

    def _is_no_place(self, error: FileNotFoundError) -> bool:  # noqa: ARG002
        return True  # a directory without files is an empty list: the bucket is missing

    def _pages(self, prefix: str, **asked: str) -> Iterator[dict[str, Any]]:
        token: str | None = ""
        while token is not None:
            page = self._page(prefix, **asked, **({"pageToken": token} if token else {}))
            yield page
            token = page.get("nextPageToken") or None

    def _page(self, prefix: str, **asked: str) -> dict[str, Any]:
        fields = "nextPageToken,prefixes,items(name)"
        params = {"prefix": prefix, "fields": fields, **asked}
        return dict(self._request("GET", self._objects, params=params).json())

    def _found(self, path: str, fields: str) -> dict[str, Any]:
        return dict(self._request("GET", self._url(path), params={"fields": fields}).json())

    def _url(self, path: str) -> str:
        return f"{self._objects}/{quote(_name(path), safe='')}"

    def _request(self, method: str, url: str, **arguments: Any) -> Response:
        """Return the answer to a request; repeat it while the server may answer differently."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        for _ in range(_ATTEMPTS - 1):
            with suppress(_BusyError):
                return self._answer(method, url, arguments)
            time.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
            pause_seconds *= 2
        return self._answer(method, url, arguments)

    def _answer(self, method: str, url: str, arguments: dict[str, Any]) -> Response:
        from google.auth.exceptions import GoogleAuthError, TransportError
        from requests import RequestException

        try:
            answer = self._session.request(method, url, timeout=_TIMEOUT_SECONDS, **arguments)
        except (RequestException, TransportError) as exc:
            raise _BusyError(f"{type(exc).__name__}: {exc}") from exc
        except GoogleAuthError as exc:
            raise PermissionError(f"no access to Google Cloud: {exc}") from exc
        if answer.ok:
            return answer
        said = f"{answer.status_code} {answer.reason}: {_message(answer)}"
        if answer.status_code in _REPEATED_STATUSES:
            raise _BusyError(said)
        if answer.status_code == _TAKEN:
            raise FileExistsError("there is an object of that name")
        raise _NATURAL.get(answer.status_code, OSError)(said)


class _Body:
    """A request's body with a file in it, read from its start each time that it is sent."""

    def __init__(self, head: str, file: IO[bytes], size_bytes: int, tail: str) -> None:
        self._head, self._tail = head.encode(), tail.encode()
        self._file, self._size_bytes = file, size_bytes

    def __len__(self) -> int:
        return len(self._head) + self._size_bytes + len(self._tail)

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        yield self._head
        while chunk := self._file.read(CHUNK_BYTES):
            yield chunk
        yield self._tail


class _BusyError(OSError):
    """The server did not answer, or answered that it cannot do so now."""


def _message(answer: Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(answer.text).strip().partition("\n")[0]


def _name(path: str) -> str:
    """Return the name of an object in its bucket."""
    return path.partition("/")[2]


def _prefix(path: str) -> str:
    name = _name(path)
    return f"{name}/" if name else ""


@cache
def _session(process: int) -> Session:  # noqa: ARG001  # a fork has its own
    """Return what sends requests with the credentials of the environment."""
    try:
        import google.auth
        import requests
        from google.auth.exceptions import DefaultCredentialsError
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as exc:
        raise ConfigurationError(
            "gs:// needs google-auth and requests: install pyspark_ckpt[gcs] for the driver and "
            "the executors"
        ) from exc
    session: Session
    if _EMULATOR in os.environ:
        session = requests.Session()
    else:
        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
        except DefaultCredentialsError as exc:
            raise ConfigurationError(
                "gs:// finds no credentials: set GOOGLE_APPLICATION_CREDENTIALS to a file on the "
                "driver and the executors, or give their machines a service account"
            ) from exc
        session = AuthorizedSession(credentials)
    session.mount(
        "https://", requests.adapters.HTTPAdapter(pool_connections=AT_ONCE, pool_maxsize=AT_ONCE)
    )
    return session
