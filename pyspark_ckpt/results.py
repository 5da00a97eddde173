"""What calls return and listeners get, to be named in type hints; the library makes all of them.

Examples
--------
>>> from pyspark_ckpt import results
>>> def path_of(savepoint: results.Savepoint) -> str:
...     return savepoint.path
"""

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.api.epoch_function import EpochId
from pyspark_ckpt.editing.erasing import Erasure
from pyspark_ckpt.formats.location_files import RolledBack
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.formats.origin import RestoredFrom
from pyspark_ckpt.history.captures import Capture
from pyspark_ckpt.history.records import AbortedCheckpoint, CompletedCheckpoint, Savepoint
from pyspark_ckpt.history.verification import Verification
from pyspark_ckpt.live.states import LiveState, LiveValue
from pyspark_ckpt.restarting.record import InPlaceRestart
from pyspark_ckpt.restarting.rollback import Rollback
from pyspark_ckpt.restore.plan import RestorePlan
from pyspark_ckpt.restore.planned import PlannedState
from pyspark_ckpt.savepoint.dispose import Disposal
from pyspark_ckpt.shadowing.report import ShadowDifference, ShadowReport
from pyspark_ckpt.shadowing.shadow import Promotion
from pyspark_ckpt.snapshot.difference import StateDifference
from pyspark_ckpt.snapshot.snapshot import Snapshot
from pyspark_ckpt.snapshot.views import StateView, TableView

__all__ = [
    "AbortReason",
    "AbortedCheckpoint",
    "Capture",
    "CheckpointKind",
    "CompletedCheckpoint",
    "Disposal",
    "EpochId",
    "Erasure",
    "InPlaceRestart",
    "LiveState",
    "LiveValue",
    "PlannedState",
    "Promotion",
    "RestorePlan",
    "RestoredFrom",
    "Rollback",
    "RolledBack",
    "Savepoint",
    "ShadowDifference",
    "ShadowReport",
    "Snapshot",
    "StateDifference",
    "StateView",
    "TableView",
    "Verification",
]
