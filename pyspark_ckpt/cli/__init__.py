"""The command line ``pyspark-ckpt``: shows checkpoints, and requests savepoints of running queries.

A command reaches a running query through its checkpoints directory. Only ``plan`` and ``rollback``
start Spark, in this process.
"""
