"""A ``foreachBatch`` function whose actions all know their epoch."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from pyspark_ckpt.errors import ConfigurationError, UnknownEpochError
from pyspark_ckpt.formats.location_files import RolledBack
from pyspark_ckpt.operator.descriptor import (
    AnnouncedEpoch,
    decode_runtime,
    encode_announced,
)
from pyspark_ckpt.operator.task_failure import marked_errors
from pyspark_ckpt.restarting.turn import in_batch_of
from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.settings import EPOCH_KEY, RUNTIME_KEY
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.query import ComputedStates, jobs_begun
from pyspark_ckpt.storage.open import open_storage


@dataclass(frozen=True, slots=True)
class EpochId:
    """The identity of an epoch, for a ``foreachBatch`` function that writes exactly once.

    It is the same when Spark repeats the epoch after a crash. A location that was rolled back has
    another `query_id`, so its epochs differ from the epochs before the rollback.

    Parameters
    ----------
    query_id : str
        The id of the query. It survives restarts of the query at its location.
    number : int
        The epoch: the batch id that the function gets. It grows with each epoch of the query.
    rolled_back : tuple of RolledBack
        The epochs that rollbacks of the location removed. A sink has to delete their output: all
        epochs of each `query_id` that are later than `after`.

    Examples
    --------
    >>> str(ckpt.results.EpochId("5f0a", 7))
    '5f0a/7'
    """

    query_id: str
    number: int
    rolled_back: tuple[RolledBack, ...] = ()

    def __str__(self) -> str:
        """Return ``<query id>/<number>``, to store as one value."""
        return f"{self.query_id}/{self.number}"


_current: ContextVar[EpochId] = ContextVar("_current")


def current_epoch() -> EpochId:
    """Return the epoch that the ``foreachBatch`` function was called for.

    Call it on the driver, in the function.

    Returns
    -------
    EpochId
        Equal in every call for this epoch, also when Spark repeats the epoch after a crash.

    Raises
    ------
    UnknownEpochError
        If the call is not in the thread of a ``foreachBatch`` function of a query that
        :func:`pyspark_ckpt.write_stream` started.

    Examples
    --------
    >>> written = {}
    >>> def note(df, epoch):
    ...     written[ckpt.current_epoch().number] = df.count()
    >>> noting = ckpt.write_stream(counts).foreachBatch(note).outputMode("update")
    >>> noted = noting.option("checkpointLocation", f"{directory}/noting").start()
    >>> noted.processAllAvailable()
    >>> written
    {0: 2}
    >>> noted.stop()
    """
    try:
        return _current.get()
    except LookupError:
        raise UnknownEpochError(
            "current_epoch() was called outside of a foreachBatch function of "
            "pyspark_ckpt.write_stream(df): call it in the function itself, and pass its result "
            "to other threads"
        ) from None


class EpochFunction:
    """A user's ``foreachBatch`` function; announces its epoch to the tasks while it runs.

    An action sends its tasks the conf of its DataFrame's session, from any thread. That session is
    the query's own. An action of the RDD has no session. For such actions the epoch is also a
    local property of the thread that calls the function.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function
        self._computed = ComputedStates()

    def __call__(self, df: DataFrame, epoch: int) -> None:
        """Call the function; a task that starts after the call is refused.

        So is an epoch of which the function has not computed all state.
        """
        session = df.sparkSession
        runtime = decode_runtime(session.conf.get(RUNTIME_KEY, None), "foreachBatch")
        log = SparkLog(open_storage(runtime.checkpoint_location))
        # Spark logs the timestamp of the batch before it starts the epoch.
        timestamp_ms = int(log.offsets_entry(epoch).metadata["batchTimestampMs"])
        announced = encode_announced(AnnouncedEpoch(epoch, timestamp_ms))
        session_of(session).announce(EPOCH_KEY, announced)
        jobs_before = jobs_begun(session)
        token = _current.set(EpochId(runtime.query_id, epoch, runtime.rolled_back))
        in_batch_of.set(runtime.query_id)
        try:
            with marked_errors():
                self._function(df, epoch)
                self._check_computed(session, runtime.query_id, epoch, log, jobs_before)
        finally:
            _current.reset(token)
            in_batch_of.set(None)
            session_of(session).announce(EPOCH_KEY, None)

    def _check_computed(
        self,
        session: SparkSession,
        query_id: str,
        epoch: int,
        log: SparkLog,
        jobs_before: int | None,
    ) -> None:
        missing = self._computed.missing(session, query_id, epoch, log, jobs_before)
        if missing:
            raise ConfigurationError(
                f"query {query_id}, epoch {epoch}: the function of foreachBatch ran no action over "
                f"all rows, so the state of {missing} subtasks was not computed. Nothing of this "
                "epoch was committed. Run one that needs all rows, as a write, collect() or "
                "count(): take, first, isEmpty, limit and show do not"
            )
