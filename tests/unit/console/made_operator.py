"""An operator whose subtasks have states of given sizes."""

from __future__ import annotations

from pyspark_ckpt.formats.handle import Handle, Segment
from pyspark_ckpt.formats.metadata import OperatorMetadata

KEY = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'


def operator(*sizes: int, parallelism: int) -> OperatorMetadata:
    """Return an operator whose first subtasks have state of these sizes."""
    handles = tuple(
        Handle(
            query_id="q", uid="op", subtask=number, parallelism=parallelism, max_parallelism=128,
            epoch=1, key_schema=KEY,
            segments=(Segment("1-x", 1, 1, size, inline=b"x" * size),),
        )
        for number, size in enumerate(sizes)
    )  # fmt: skip
    return OperatorMetadata(
        operator_id=0, uid="op", parallelism=parallelism, max_parallelism=128, key_schema=KEY,
        backend="heap", handles=handles,
    )  # fmt: skip
