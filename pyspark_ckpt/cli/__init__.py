"""The command line ``pyspark-ckpt``: looks at checkpoints, and asks running queries for savepoints.

A running query is reached through its checkpoints directory. Only ``plan`` and ``rollback`` start
Spark, in this process.
"""
