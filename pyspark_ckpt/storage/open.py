"""Storages by their URL. Nothing else in the library writes, reads or deletes checkpoint files.

A storage and its library are imported when a URL of its scheme is opened, because most queries need
only one storage, and every Python worker imports this module.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark_ckpt.errors import ConfigurationError, NotBuiltYetError
from pyspark_ckpt.storage.base import Storage
from pyspark_ckpt.storage.local import LocalStorage

__all__ = ["LocalStorage", "Storage", "local_path", "open_storage"]


def _open_s3(rest: str, scheme: str = "s3") -> Storage:
    from pyspark_ckpt.storage.servers.s3 import S3Storage

    bucket, _, prefix = rest.partition("/")
    return S3Storage(bucket, prefix, scheme)


def _open_hdfs(rest: str) -> Storage:
    from pyspark_ckpt.storage.servers.hdfs import HdfsStorage

    authority, _, path = rest.removeprefix(":").partition("/")
    return HdfsStorage(authority, path)


def _open_azure(scheme: str, rest: str) -> Storage:
    from pyspark_ckpt.storage.servers.azure import AzureStorage

    authority, _, prefix = rest.partition("/")
    return AzureStorage(scheme, authority, prefix)


def _open_gcs(rest: str) -> Storage:
    from pyspark_ckpt.storage.servers.gcs import GcsStorage

    bucket, _, prefix = rest.partition("/")
    return GcsStorage(bucket, prefix)


def _open_memory(rest: str) -> Storage:
    from pyspark_ckpt.storage.memory import MemoryStorage

    return MemoryStorage(rest)


_OPENERS: dict[str, Callable[[str], Storage]] = {
    "s3": _open_s3,
    "s3a": partial(_open_s3, scheme="s3a"),
    "hdfs": _open_hdfs,
    "abfss": partial(_open_azure, "abfss"),
    "abfs": partial(_open_azure, "abfss"),
    "az": partial(_open_azure, "az"),
    "gs": _open_gcs,
    "memory": _open_memory,
}
"""The function that opens a URL, by scheme; it gets the text after ``<scheme>://``."""


_LOCAL_URL = re.compile(r"file:/(?!/[^/])")

_SUPPORTED = (
    "local and mounted paths, s3:// and s3a:// (install pyspark_ckpt[s3]), hdfs:// "
    "(pyspark_ckpt[hdfs]), abfss:// and az:// (pyspark_ckpt[azure]), gs:// (pyspark_ckpt[gcs])"
)

_INSTEAD = {
    "dbfs": "write the mount's path, /dbfs/..., or the bucket's own URL",
    "wasb": "write abfss://container@account.dfs.core.windows.net/path",
    "wasbs": "write abfss://container@account.dfs.core.windows.net/path",
    "webhdfs": "write hdfs://namenode:8020/path",
    "swebhdfs": "write hdfs://namenode:8020/path",
    "s3n": "write s3://bucket/prefix",
    "gcs": "write gs://bucket/prefix",
}
"""What to write for the URL of a scheme that means a supported storage."""


def open_storage(url: str | os.PathLike[str], what: str = "path") -> Storage:
    """Return the storage at a path or URL; nothing is created yet."""
    url = os.fspath(url)
    if url.startswith("file:"):
        return LocalStorage(Path(local_path(url)))
    match = re.match(r"([^/]+):/", url)  # also of chained URLs: cache::s3://
    scheme = match[1] if match else ""
    if scheme in _OPENERS:
        return _OPENERS[scheme](url[len(scheme) :].removeprefix("://"))
    if scheme:
        instead = _INSTEAD.get(scheme, "use one of those")
        raise NotBuiltYetError(
            f"{what} {url}: {scheme}:// is not supported, because no storage for it is known to "
            f"create files exclusively. Supported are {_SUPPORTED}: {instead}"
        )
    return LocalStorage(Path(url).expanduser().absolute())


def local_path(url: str) -> str:
    """Return the path of a ``file:`` URL; Spark writes ``file:/x`` or ``file:///x``.

    As Hadoop does it, ``..`` removes the name before it, even if that is a symbolic link.
    """
    if not _LOCAL_URL.match(url):
        raise ConfigurationError(
            f"{url} is not a URL of an absolute local path, so Spark does not find it: write "
            "file:///path, or the path alone"
        )
    path = re.sub(r"^file:/+", "/", url)
    return posixpath.normpath(path) if ".." in path.split("/") else path
