"""How rows get from Spark's worker to an operator and back: through Arrow, or through pandas.

`run/subtask` chooses `worker`, the hook in PySpark's worker, or `pandas_frames`, PySpark's way.
"""
