"""Flink's managed state, checkpoints and savepoints for PySpark Structured Streaming.

Examples
--------
The examples of functions and methods continue this one. `spark` is a session and `directory`
a path that the driver and all executors see.

>>> import pyspark_ckpt as ckpt
>>> from pyspark.sql import Row
>>> from pyspark.sql.streaming import StatefulProcessor
>>> class Count(StatefulProcessor):
...     def init(self, handle):
...         self.count = handle.getValueState("count", "n long")
...
...     def handleInputRows(self, key, rows, timerValues):
...         (n,) = self.count.get() or (0,)
...         n += sum(1 for _ in rows)
...         self.count.update((n,))
...         yield Row(user=key[0], n=n)
...
...     def close(self): ...
>>> rows = spark.createDataFrame([("ada",), ("bob",), ("ada",)], "user string")
>>> rows.write.parquet(f"{directory}/events")
>>> events = spark.readStream.schema("user string").parquet(f"{directory}/events")
>>> counts = ckpt.key_by(events, "user").transformWithState(
...     Count(), "user string, n long", "Update", "None", uid="count"
... )
>>> results = {}
>>> def keep(df, epoch):
...     results.update({row.user: row.n for row in df.collect()})
>>> writer = (
...     ckpt.write_stream(counts)
...     .outputMode("update")
...     .foreachBatch(keep)
...     .option("checkpointLocation", f"{directory}/query")
... )
>>> query = writer.start()
>>> query.processAllAvailable()
>>> sorted(results.items())
[('ada', 2), ('bob', 1)]
>>> checkpoint = query.triggerCheckpoint()
>>> savepoint = query.triggerSavepoint(f"{directory}/savepoints")
"""

from pyspark_ckpt.required_pyspark import check_pyspark

check_pyspark()

from pyspark_ckpt import agg, errors, operators, results
from pyspark_ckpt.api.adoption import disable, enable
from pyspark_ckpt.api.epoch_function import current_epoch
from pyspark_ckpt.api.location import Location, location
from pyspark_ckpt.api.shadowing import shadow
from pyspark_ckpt.api.stream import KeyedStream, key_by
from pyspark_ckpt.api.writer import CheckpointedStreamWriter, write_stream
from pyspark_ckpt.editing.state_edit import StateEdit, edit_state
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.importing.import_checkpoint import ImportedOperator
from pyspark_ckpt.importing.state_rows import KeyState
from pyspark_ckpt.local_files.conf import local_files_conf
from pyspark_ckpt.log_fields import JsonLogFormatter
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.modes.processors import ArrowProcessor, BatchProcessor
from pyspark_ckpt.operator.state.merging import AggregateFunction
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.query.attaching import attach
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.settings import read_conf_file
from pyspark_ckpt.shadowing.shadow import Shadow
from pyspark_ckpt.snapshot.data_source import StateDataSource
from pyspark_ckpt.version import __version__

__all__ = [
    "AggregateFunction",
    "ArrowProcessor",
    "BatchProcessor",
    "CheckpointListener",
    "CheckpointedQuery",
    "CheckpointedStreamWriter",
    "ImportedOperator",
    "JsonLogFormatter",
    "KeyState",
    "KeyedStream",
    "Location",
    "Migration",
    "Shadow",
    "StateDataSource",
    "StateEdit",
    "StateTtlConfig",
    "__version__",
    "agg",
    "attach",
    "current_epoch",
    "disable",
    "edit_state",
    "enable",
    "errors",
    "key_by",
    "local_files_conf",
    "location",
    "operators",
    "read_conf_file",
    "results",
    "shadow",
    "write_stream",
]

# Programs written before `errors` and `location` say these; they are no part of what is documented.
from pyspark_ckpt.editing.erasing import erase_keys as erase_keys
from pyspark_ckpt.errors import ConfigurationError as ConfigurationError
from pyspark_ckpt.errors import FailedCheckpointsError as FailedCheckpointsError
from pyspark_ckpt.errors import RestoreError as RestoreError
from pyspark_ckpt.restarting.rollback import rollback as rollback


def __dir__() -> list[str]:
    """Show the public names only, not the modules that they come from."""
    return __all__
