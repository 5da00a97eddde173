"""A bucket of S3 as a storage, through s3fs.

One request creates a file with all of its content, and fails if the name is taken
(``If-None-Match: *``): a put, or for a large file the end of a multi-part upload. Credentials,
region and endpoint come from the environment, as botocore reads it.
"""

from __future__ import annotations

import errno
import hashlib
import random
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage.base import Storage, path_parts
from pyspark_ckpt.storage.servers.object_store import FsspecStorage, codes_of
from pyspark_ckpt.storage.servers.remote import in_parts

_CONFLICT = "ConditionalRequestConflict"
"""The code of S3's answer if two requests for one name arrive at the same time."""

_KINDS = {"head_object": "head", "abort_multipart_upload": "delete"}
"""Of requests for one object; all others are puts."""

_ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 0.05
_WRITER = "writer"
_VERSION = "?versionId="
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class S3Storage(FsspecStorage):
    """Objects of one bucket whose keys start with a prefix."""

    _no_place = "NoSuchBucket"

    def __init__(self, bucket: str, prefix: str = "", scheme: str = "s3") -> None:
        if _BUCKET.fullmatch(bucket) is None:
            raise ConfigurationError(
                f"s3://{bucket.rpartition('@')[2]}/...: this is not a bucket's name: write "
                "s3://bucket/prefix, and keep credentials in the environment"
            )
        prefix = prefix.strip("/")
        if _VERSION in prefix:
            raise ConfigurationError(
                f"s3://{bucket}/{prefix}: s3fs takes {_VERSION} for the version of an object, and "
                "would not find what is written here: choose a path without it"
            )
        parts = path_parts(prefix, f"s3://{bucket}") if prefix else ()
        root = "/".join((bucket, *parts))
        super().__init__(f"s3://{root}", root, _file_system())
        self._scheme = scheme
        from botocore.exceptions import BotoCoreError  # comes with s3fs only

        self._failures = (*self._failures, BotoCoreError)

    @property
    def hadoop_url(self) -> str:
        return f"{self._scheme}://{self._root}"

    def _at(self, root: str) -> Storage:
        bucket, _, prefix = root.partition("/")
        return S3Storage(bucket, prefix, self._scheme)

    def list(self, directory: str | None = None) -> list[str]:
        return sorted([*super().list(directory), *self._uploads(directory)])

    # What s3fs asks in addition is counted too, because S3 charges for it.

    def _content(self, path: str) -> bytes:
        self._counts.add("head")
        return super()._content(path)

    def _look(self, path: str) -> int | None:
        try:
            size_bytes = super()._look(path)
        except FileNotFoundError:
            self._counts.add("list")
            raise
        if size_bytes is None:
            self._counts.add("list")
        return size_bytes

    def _names(self, path: str) -> set[str]:
        try:
            return super()._names(path)
        except FileNotFoundError:
            self._counts.add("list")
            raise

    def delete(self, relatives: Iterable[str]) -> None:
        files = []
        unfinished: dict[str, dict[str, tuple[str, str]]] = {}
        for relative in relatives:
            directory, _, name = relative.rpartition("/")
            if _UNFINISHED.fullmatch(name) is None:
                files.append(relative)
                continue
            if directory not in unfinished:
                unfinished[directory] = self._uploads(directory or None)
            upload = unfinished[directory].get(name)
            if upload is not None:
                with suppress(FileNotFoundError):  # it has ended
                    self._call("abort_multipart_upload", upload[0], UploadId=upload[1])
        super().delete(files)

    def _uploads(self, directory: str | None) -> dict[str, tuple[str, str]]:
        """Return path and id of the uploads into a directory that have not ended, by name."""
        path = self._root if directory is None else self._path(directory)
        bucket, _, prefix = f"{path}/".partition("/")
        found = {}
        for upload in self._all_uploads(directory, bucket, prefix):
            name, upload_id = upload["Key"].removeprefix(prefix), upload["UploadId"]
            relative = name if directory is None else f"{directory}/{name}"
            mark = hashlib.sha256(upload_id.encode()).hexdigest()[:8]
            if name and "/" not in name:
                found[f".{name}.{mark}.tmp"] = (relative, upload_id)
        return found

    def _all_uploads(
        self, directory: str | None, bucket: str, prefix: str
    ) -> Iterator[dict[str, str]]:
        """Yield the uploads below a prefix; S3 lists at most a thousand at once."""
        place: dict[str, str] = {}
        while True:
            self._counts.add("list")
            try:
                with self._errors_named(directory):
                    answer = self._file_system.call_s3(
                        "list_multipart_uploads",
                        Bucket=bucket,
                        Prefix=prefix,
                        Delimiter="/",
                        **place,
                    )
            except PermissionError:  # this user cannot abort uploads either
                return
            except OSError as exc:
                if exc.errno != errno.ENOSYS:
                    raise
                return  # a server that speaks S3 may not have this request
            yield from answer.get("Uploads", [])
            after = {
                "KeyMarker": answer.get("NextKeyMarker"),
                "UploadIdMarker": answer.get("NextUploadIdMarker"),
            }
            following = {name: value for name, value in after.items() if value}
            if not answer.get("IsTruncated") or following == place:
                return
            place = following

    def _create(self, relative: str, chunks: Iterable[bytes]) -> None:
        # If an answer is lost, s3fs repeats the request, and finds the name taken by the first one,
        # or no such upload, because S3 forgets an upload that has ended.
        writer = {_WRITER: secrets.token_hex(16)}
        parts = in_parts(chunks)
        first = next(parts, b"")
        second = next(parts, None)
        try:
            if second is None:
                self._put(relative, first, writer)
            else:
                self._upload(relative, writer, chain([first, second], parts))
        except FileExistsError:
            if not self._has_written(relative, writer):
                raise
        except OSError:
            with suppress(OSError):  # the caller gets the first error instead
                if self._has_written(relative, writer):
                    return
            raise

    def _has_written(self, relative: str, writer: dict[str, str]) -> bool:
        return bool(self._call("head_object", relative).get("Metadata") == writer)

    def _put(self, relative: str, body: bytes, writer: dict[str, str]) -> None:
        """Put an object; repeat the request if S3 reports a conflict with another request."""
        pause_seconds = _FIRST_PAUSE_SECONDS
        for _ in range(_ATTEMPTS - 1):
            with suppress(_ConflictError):
                return self._put_once(relative, body, writer)
            time.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311  # no secret
            pause_seconds *= 2
        return self._put_once(relative, body, writer)

    def _put_once(self, relative: str, body: bytes, writer: dict[str, str]) -> None:
        try:
            self._call("put_object", relative, Body=body, IfNoneMatch="*", Metadata=writer)
        except OSError as exc:
            if _CONFLICT in codes_of(exc):
                raise _ConflictError(*exc.args, exc.filename) from exc
            raise

    def _upload(self, relative: str, writer: dict[str, str], parts: Iterable[bytes]) -> None:
        upload = self._call("create_multipart_upload", relative, Metadata=writer)["UploadId"]
        tags = []
        try:
            for number, part in enumerate(parts, start=1):
                sent = self._call(
                    "upload_part", relative, UploadId=upload, PartNumber=number, Body=part
                )
                tags.append({"PartNumber": number, "ETag": sent["ETag"]})
            self._call(
                "complete_multipart_upload",
                relative,
                UploadId=upload,
                MultipartUpload={"Parts": tags},
                IfNoneMatch="*",
            )
        except BaseException:
            with suppress(Exception):  # the caller gets the first error instead
                self._call("abort_multipart_upload", relative, UploadId=upload)
            raise

    def _call(self, method: str, relative: str, **arguments: Any) -> dict[str, Any]:
        bucket, _, key = self._path(relative).partition("/")
        self._counts.add(_KINDS.get(method, "put"))
        with self._errors_named(relative):
            try:
                answer: dict[str, Any] = self._file_system.call_s3(
                    method, Bucket=bucket, Key=key, **arguments
                )
            except OSError as exc:
                if _is_taken(exc):
                    raise FileExistsError("there is an object of that name") from exc
                raise
        return answer


class _ConflictError(OSError):
    """Requests for one name arrived at the same time; it is unknown which request succeeded."""


def _file_system() -> AbstractFileSystem:
    try:
        # One file system per process, without a cache: listings must show the bucket as it is now.
        return fsspec.filesystem("s3", use_listings_cache=False)
    except ImportError as exc:
        raise ConfigurationError(
            "s3:// needs s3fs, which is not installed: install pyspark_ckpt[s3] for the driver and "
            "the executors"
        ) from exc


def _is_taken(error: OSError) -> bool:
    """Return whether a name was refused because it is taken; not all servers report that."""
    response = getattr(error.__cause__, "response", {})
    return bool(response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 412)
