"""PySpark's daemon with the imports of Python workers already loaded, so that a worker only forks.

Tests start hundreds of workers: for those that failed or were killed, and for queries whose
environment differs. Programs that tests start have PySpark's daemon.
"""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

USED_BY_WORKERS = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.sql.pandas.serializers",
    "pyspark.worker",
    "pyspark_ckpt.savepoint.job",
    "pyspark_ckpt.operator.run.without_query",
    "pyspark_ckpt.operator.run.without_query",
    "pyspark_ckpt.stored.rewrite",
    "pyspark_ckpt.operator.run.subtask",
    "rocksdict",
    "lmdb",
)

if __name__ == "__main__":
    for name in USED_BY_WORKERS:
        import_module(name)
    manager()
