"""The command line ``pyspark-ckpt``: looks at checkpoints, and asks running queries for savepoints.

It starts no Spark. A running query is reached through its checkpoints directory.
"""
