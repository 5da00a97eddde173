"""Paths as Spark understands them. Driver only."""

from __future__ import annotations

import os
import re

from pyspark.sql import SparkSession

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.storage.open import local_path, open_storage


def qualified_path(spark: SparkSession, path: str) -> str:
    """Return the URL that Spark makes of a path.

    A path without a scheme is on Hadoop's default file system, which may be HDFS instead of the
    local disk. There a relative path starts from the user's directory; on the local disk it starts
    from the JVM's working directory. ``hdfs:///path`` is of the default NameNode.
    """
    path = os.fspath(path)
    match = _SCHEME.match(path)
    if path.startswith("file:"):
        local = local_path(path)
        return f"file:{local}" if ".." in path.split("/") else path  # Hadoop removes ``..``, too
    if match is None and _RELATIVE_URL.match(path):
        raise ConfigurationError(
            f"{path!r} is a scheme with a relative path, which Spark refuses: write the whole URL, "
            "or an absolute path"
        )
    if match is not None and match["authority"]:
        return path
    return session_of(spark).qualified(path, None if match is None else match["scheme"])


def shared_directory(spark: SparkSession, path: str | None) -> str | None:
    """Return the URL of a directory that all processes of a query reach; ``None`` of ``None``."""
    if path is None:
        return None
    storage = open_storage(qualified_path(spark, path))
    if not storage.is_shared:
        raise ConfigurationError(
            f"{storage.url} is in the memory of one process, and the tasks of a query run in other "
            "processes: use a local or mounted path, or s3://bucket/prefix"
        )
    storage.list()  # refuses an unreadable directory before anything starts
    return storage.url


def usable_directory(spark: SparkSession, path: str) -> str:
    """Return the URL of a directory, checked as those that a query is configured with."""
    url = str(shared_directory(spark, path))
    open_storage(url).check_usable()
    return url


_RELATIVE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?![/:])")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/(?P<authority>/[^/]+)?")
