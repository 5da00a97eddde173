"""Storages by their URL. Nothing else in the library writes, reads or deletes checkpoint files."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_ckpt.errors import NotBuiltYetError
from pyspark_ckpt.storage.base import Storage
from pyspark_ckpt.storage.local import LocalStorage
from pyspark_ckpt.storage.memory import MEMORY_SCHEME, MemoryStorage
from pyspark_ckpt.storage.s3 import S3_SCHEMES, S3Storage

__all__ = ["LocalStorage", "Storage", "open_local_storage", "open_storage"]


def open_storage(url: str, what: str = "path") -> Storage:
    """Return the storage at a path or URL, called `what` in errors; nothing is created yet.

    Raises
    ------
    NotBuiltYetError
        If there is no storage for such a URL.
    ConfigurationError
        If its library is not installed.
    """
    scheme = _scheme(url)
    rest = url[len(scheme) :].removeprefix("://")
    if scheme in S3_SCHEMES:
        bucket, _, prefix = rest.partition("/")
        return S3Storage(bucket, prefix)
    if scheme == MEMORY_SCHEME:
        return MemoryStorage(rest)
    if scheme not in ("", "file"):
        raise NotBuiltYetError(
            f"{what} {url}: there is no storage for {scheme}:// that is known to create files "
            "exclusively; use a local or mounted path, or s3://bucket/prefix"
        )
    return open_local_storage(url, what)


def open_local_storage(url: str, what: str = "path") -> LocalStorage:
    """Return the storage at a local path or URL, called `what` in errors; nothing is created yet.

    Raises
    ------
    NotBuiltYetError
        If the URL is not of the local file system.
    """
    scheme = _scheme(url)
    if scheme not in ("", "file"):
        raise NotBuiltYetError(
            f"{what} {url}: Spark keeps its own files there, {scheme}:// is not built yet; use a "
            "local or mounted path"
        )
    # Spark writes local paths as file:/x or file:///x.
    path = re.sub(r"^file:/+", "/", url) if scheme else url
    return LocalStorage(Path(path).expanduser().absolute())


def _scheme(url: str) -> str:
    match = re.match(r"([^/]+):/", url)  # also of chained URLs: cache::s3://
    return match[1] if match else ""
