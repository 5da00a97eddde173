"""What a processor sees in an epoch, recorded, so that it can be replayed without Spark.

A capture: `orders` says which epochs, `recording` sees one, `writing` writes a `capture_file`. The
replay is in `testing/replaying`.
"""
