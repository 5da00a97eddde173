"""Paths as Spark understands them. Driver only."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession


def qualified_path(spark: SparkSession, path: str) -> str:
    """Return the URL that Spark makes of a path.

    A path without a scheme is on Hadoop's default file system, which may be HDFS instead of the
    local disk. A relative path starts from the JVM's working directory.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        return path
    hadoop = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    default = str(hadoop.FileSystem.getDefaultUri(conf).toString())
    if not default.startswith("file:"):
        return f"{default.rstrip('/')}/{path.lstrip('/')}"
    return str(hadoop.FileSystem.getLocal(conf).makeQualified(hadoop.Path(path)).toString())
