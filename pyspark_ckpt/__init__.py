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

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.api.adoption import disable, enable
from pyspark_ckpt.api.capturing import capture
from pyspark_ckpt.api.epoch_function import EpochId, current_epoch
from pyspark_ckpt.api.restoring import plan_restore, rename_uid
from pyspark_ckpt.api.shadowing import shadow
from pyspark_ckpt.api.stream import KeyedStream, key_by
from pyspark_ckpt.api.writer import CheckpointedStreamWriter, write_stream
from pyspark_ckpt.combine.aggregates import (
    Aggregate,
    CollectList,
    Count,
    First,
    Last,
    Max,
    Min,
    Sum,
)
from pyspark_ckpt.editing.erasing import Erasure, erase_keys
from pyspark_ckpt.editing.state_edit import StateEdit, edit_state
from pyspark_ckpt.errors import (
    CheckpointAbortedError,
    CheckpointError,
    CheckpointNotFoundError,
    CkptError,
    ClockError,
    ConfigurationError,
    CorruptFileError,
    CrashedError,
    FailedCheckpointsError,
    FencedError,
    HarnessUseError,
    IncompatibleStateError,
    InputRowsError,
    NotBuiltYetError,
    PlanError,
    ProcessorError,
    QuarantineError,
    RestoreError,
    SessionEndedError,
    StateError,
    StateUseError,
    StateValueError,
    TimeModeError,
    UnknownEpochError,
    UnsafePathError,
)
from pyspark_ckpt.formats.location_files import RolledBack
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.formats.origin import Restore
from pyspark_ckpt.history.captures import Capture
from pyspark_ckpt.history.frames import history, subtask_history
from pyspark_ckpt.history.lineage import lineage
from pyspark_ckpt.history.listener import CheckpointListener
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint, Savepoint
from pyspark_ckpt.history.verification import Verification, verify
from pyspark_ckpt.importing.import_checkpoint import ImportedOperator, import_checkpoint
from pyspark_ckpt.importing.state_rows import KeyState
from pyspark_ckpt.live.states import LiveState, LiveValue
from pyspark_ckpt.local_files.conf import local_files_conf
from pyspark_ckpt.log_fields import JsonLogFormatter
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.modes.processors import ArrowProcessor, BatchProcessor
from pyspark_ckpt.operator.state.merging import AggregateFunction
from pyspark_ckpt.operator.table.time_to_live import StateTtlConfig
from pyspark_ckpt.query.attaching import attach
from pyspark_ckpt.query.query import CheckpointedQuery
from pyspark_ckpt.restarting.record import InPlaceRestart
from pyspark_ckpt.restarting.rollback import Rollback, rollback
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.restore.planned import PlannedState
from pyspark_ckpt.savepoint.dispose import Disposal, dispose_savepoint
from pyspark_ckpt.settings import read_conf_file
from pyspark_ckpt.shadowing.report import ShadowDifference, ShadowReport
from pyspark_ckpt.shadowing.shadow import Promotion, Shadow
from pyspark_ckpt.snapshot.data_source import StateDataSource
from pyspark_ckpt.snapshot.difference import StateDifference, diff_state
from pyspark_ckpt.snapshot.snapshot import Snapshot, open_state
from pyspark_ckpt.snapshot.views import StateView, TableView
from pyspark_ckpt.version import __version__

__all__ = [
    "AbortReason",
    "AbortedCheckpoint",
    "Aggregate",
    "AggregateFunction",
    "ArrowProcessor",
    "BatchProcessor",
    "Capture",
    "CheckpointAbortedError",
    "CheckpointError",
    "CheckpointKind",
    "CheckpointListener",
    "CheckpointNotFoundError",
    "CheckpointedQuery",
    "CheckpointedStreamWriter",
    "CkptError",
    "ClockError",
    "CollectList",
    "CompletedCheckpoint",
    "ConfigurationError",
    "CorruptFileError",
    "Count",
    "CrashedError",
    "Disposal",
    "EpochId",
    "Erasure",
    "FailedCheckpointsError",
    "FencedError",
    "First",
    "HarnessUseError",
    "ImportedOperator",
    "InPlaceRestart",
    "IncompatibleStateError",
    "InputRowsError",
    "JsonLogFormatter",
    "KeyState",
    "KeyedStream",
    "Last",
    "LiveState",
    "LiveValue",
    "Max",
    "Migration",
    "Min",
    "NotBuiltYetError",
    "PlanError",
    "PlannedState",
    "ProcessorError",
    "Promotion",
    "QuarantineError",
    "Restore",
    "RestoreError",
    "RestorePlan",
    "Rollback",
    "RolledBack",
    "Savepoint",
    "SessionEndedError",
    "Shadow",
    "ShadowDifference",
    "ShadowReport",
    "Snapshot",
    "StateDataSource",
    "StateDifference",
    "StateEdit",
    "StateError",
    "StateTtlConfig",
    "StateUseError",
    "StateValueError",
    "StateView",
    "Sum",
    "TableView",
    "TimeModeError",
    "UnknownEpochError",
    "UnsafePathError",
    "Verification",
    "__version__",
    "attach",
    "capture",
    "current_epoch",
    "diff_state",
    "disable",
    "dispose_savepoint",
    "edit_state",
    "enable",
    "erase_keys",
    "history",
    "import_checkpoint",
    "key_by",
    "lineage",
    "local_files_conf",
    "open_state",
    "plan_restore",
    "read_conf_file",
    "rename_uid",
    "rollback",
    "shadow",
    "subtask_history",
    "verify",
    "write_stream",
]


def __dir__() -> list[str]:
    """Show the public names only, not the modules that they come from."""
    return __all__
