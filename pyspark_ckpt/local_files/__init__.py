"""Spark's own files on a local disk: a jar that spares a process for each of them."""
