"""Paths as Spark understands them. Driver only."""

from __future__ import annotations

from pyspark.sql import SparkSession


def qualified_path(spark: SparkSession, path: str) -> str:
    """Return the URL that Spark makes of a path.

    A path without a scheme is on Hadoop's default file system, which may be HDFS and must not be
    taken for a local disk; a relative one starts from the JVM's working directory.
    """
    hadoop_path = spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    file_system = hadoop_path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return str(file_system.makeQualified(hadoop_path).toString())
