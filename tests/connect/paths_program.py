"""What a client of Spark Connect makes of paths; see test_paths. Its argument is a directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.spark.paths import qualified_path
from pyspark_ckpt.storage.open import open_storage

PATHS = ("/a", "hdfs:///a", "hdfs:/a", "dbfs:/a", "s3:/b/a", "hdfs://other:8020/a", "file:/a/../b")
DEFAULT_FS = "spark.hadoop.fs.defaultFS"


def opened(path: str) -> str:
    try:
        return open_storage(qualified_path(spark, path)).url
    except ckpt.errors.CkptError as error:
        return type(error).__name__


os.chdir(sys.argv[1])
spark = SparkSession.builder.getOrCreate()
print(*(qualified_path(spark, path) for path in PATHS))
print(*map(opened, ("/a", "hdfs:///a", "dbfs:/a", "s3:/b/a", "a/b", "hdfs:a", "file:a")))
spark.conf.set(DEFAULT_FS, "hdfs://127.0.0.1:8020/")
print(*(qualified_path(spark, path) for path in PATHS))
print(list(Path.cwd().iterdir()))
