"""How rows get from Spark's worker to an operator and back: in Arrow, or packed into bytes.

The driver decides (`plan/hand_over`). `worker` is the hook in PySpark's worker for Arrow; `packing`
makes bytes of rows where there can be no hook.
"""
