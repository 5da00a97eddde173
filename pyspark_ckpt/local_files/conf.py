"""The settings with which Spark takes the jar of this folder."""

from __future__ import annotations

from pathlib import Path

JAR = Path(__file__).parent / "local-files.jar"
_KEY = "spark.hadoop.fs.AbstractFileSystem.file.impl"


def local_files_conf() -> dict[str, str]:
    """Return settings with which Spark writes its small local files without a process for each.

    For each epoch Spark writes some small files into the checkpoint location. Hadoop starts a
    process, ``chmod`` or ``readlink``, for each of them if it has not its native library, which
    PySpark does not bring. That is a large part of a small epoch. A class in a jar of this library
    does the same in Java, with the same files, checksum files and permissions. Give the settings
    to the session's builder, before the session starts. Called on the driver.

    Returns
    -------
    dict of str to str
        Settings of the session: ``spark.jars`` and a class of Hadoop. If you have jars of your
        own, join them with a comma.

    Examples
    --------
    >>> from pyspark.sql import SparkSession
    >>> builder = SparkSession.builder.config(map=ckpt.local_files_conf())
    """
    return {"spark.jars": str(JAR), _KEY: "pyspark_ckpt.NioLocalFs"}
