"""The state of Spark's own stateful operators in a checkpoint: copies of Spark's files."""

from __future__ import annotations

from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.errors import CheckpointAbortedError
from pyspark_ckpt.formats.metadata import SparkOperatorMetadata
from pyspark_ckpt.spark.state_files import needed_files, operator_name
from pyspark_ckpt.storage.open import Storage

_OF_ONE_PARTITION = "globalLimit"


def keep_spark_operators(query: QueryFiles, epoch: int) -> tuple[SparkOperatorMetadata, ...]:
    """Return durable copies of the state of Spark's own operators at a committed epoch."""
    location = query.spark_log.storage
    parallelism = query.operators.descriptors[0].parallelism
    return tuple(
        SparkOperatorMetadata(
            operator_id=operator_id,
            name=_checked_name(location, operator_id, operator.name),
            files=tuple(
                query.spark_state_copies.keep(operator_id, name)
                for name in needed_files(
                    location,
                    operator_id,
                    epoch + 1,
                    1 if operator.name == _OF_ONE_PARTITION else parallelism,
                )
            ),
        )
        for operator_id, operator in query.operators.spark_operators.items()
    )


def _checked_name(location: Storage, operator_id: int, wanted: str) -> str:
    found = operator_name(location, operator_id)
    if found != wanted:
        raise CheckpointAbortedError(
            f"{location.url}: Spark's operator {operator_id} is {found!r}, but the query's plan "
            f"has {wanted!r}: report the query's plan to the authors of pyspark_ckpt"
        )
    return found
