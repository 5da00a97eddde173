"""Where a running query keeps its files, and what it consists of."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace

from pyspark_ckpt.checkpoint.native_copies import NativeCopies
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.operators import StatefulOperators
from pyspark_ckpt.storage.open import Storage


@dataclass(frozen=True, slots=True)
class QueryFiles:
    """Where a running query keeps its files, and what it consists of.

    `source_ids` tells of each of Spark's source offsets which source it is of. `run` is a name that
    no other start of the query has. `native_copies` are those of the
    state of Spark's own operators.
    """

    checkpoint_location: str
    spark_log: SparkLog
    storage: Storage
    query_id: str
    query_name: str | None
    backend_type: str
    operators: StatefulOperators
    source_ids: tuple[int, ...]
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    native_copies: NativeCopies = field(init=False)

    def __post_init__(self) -> None:
        copies = NativeCopies(self.spark_log.storage, self.storage, self.run)
        object.__setattr__(self, "native_copies", copies)

    def through(self, storage: Storage) -> QueryFiles:
        """Return the same files of the same run, reached through another storage."""
        files = replace(self, storage=storage)
        object.__setattr__(files, "native_copies", self.native_copies)
        return files
