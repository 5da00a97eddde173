"""The command line ``pyspark-ckpt``: shows checkpoints, and requests savepoints of running queries.

A command sends requests to a running query through its checkpoints directory. Only ``plan``,
``shadow`` and ``rollback`` start Spark, in this process.
"""
