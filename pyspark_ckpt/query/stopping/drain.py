"""Draining: a last epoch without input, in which every event-time timer of a stopped query fires.

Spark runs an epoch whose offsets are written but not committed. So the drain writes the offsets of
one more epoch. They leave the sources where they are, and their watermark is later than all timers.
Then it starts the query for that epoch only. At last it writes the true watermark into the logs
again, so that rows are not late if a query continues from here. Timers that are set by timers take
another epoch.

A marker records the epoch that drains. If the driver dies before the drain ends, the next start
finishes that epoch first, so that the high watermark does not stay.

Once the epoch has run, another file keeps what Spark wrote when it committed it. Spark's files are
written anew, and each is away for a moment. If the driver dies then, the next start writes them
again, before it looks at the location, and the epoch does not run again.

The driver that drains may still run when another one starts. The newer one fences it, and finishes
the drain. Spark lets one of the two commit the epoch. It would begin another epoch for the second,
with new input, if the first has committed just before. The tasks refuse that, because they know
the epoch that drains, and the true watermark is written into its offsets, too.

A driver may also be fenced just before it writes the marker, and a newer one may run by then. So a
file that is created exclusively decides, before anything is done, whether the drain is done: the
driver that wrote the marker begins it, or another one that finds the marker makes it void.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, FencedError
from pyspark_ckpt.formats.handle import QUARANTINED_TIMERS_MS, Handle
from pyspark_ckpt.formats.layout import DRAIN_MARKER, DRAINED_COMMIT
from pyspark_ckpt.formats.location_files import read_small_file
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.descriptor import Drain
from pyspark_ckpt.operator.time import NEVER_LATE
from pyspark_ckpt.restore.location.facts import Draining
from pyspark_ckpt.spark.log import OffsetsEntry, SparkLog
from pyspark_ckpt.storage.base import JSON_ERRORS, RESTORE, corrupt_file
from pyspark_ckpt.storage.fenced import Lease

logger = library_logger(__name__)

MAX_EPOCHS = 100
"""A limit, because timers that set timers may never end."""

_BEGUN = b"begun\n"
_VOID = b"void\n"

_LAST_ALONE_MS = ((1 << 63) - 1) // 1000
_LAST_OF_SEVERAL_MS = NEVER_LATE // 1000 - 1
"""Rows that one operator sends to the next have at most this event time, and must not be late."""

RunEpoch = Callable[[Drain | None], None]
"""Runs the query for the one epoch that is due, and returns when the epoch has ended.

Its argument is for the tasks if the epoch drains the query, else ``None``.
"""


class _Draining(msgspec.Struct, frozen=True):
    """The marker: the epoch that drains, its watermark, and the true watermark.

    `triggered_at_ms` is the processing time of the epoch, which is the same if it is run again.
    `token` is in the name of the file that decides whether the drain is done.
    """

    epoch: int
    drained_at_ms: int
    watermark_ms: int
    triggered_at_ms: int
    token: str


class _DrainedCommit(msgspec.Struct, frozen=True):
    """The commit of an epoch that has drained the query, with the true watermark, for Spark."""

    epoch: int
    commit: str


def _decision_of(draining: _Draining) -> str:
    return f"{DRAIN_MARKER}-{draining.token}"


class LastEpochs:
    """Runs the epochs that a stopped query still needs.

    `run_epoch` runs the query for one epoch; it is ``None`` if that is not possible.
    """

    def __init__(self, log: SparkLog, run_epoch: RunEpoch | None) -> None:
        self._log = log
        self._storage = log.storage
        self._given = run_epoch

    def check_possible(self) -> None:
        """Check that epochs can be run here."""
        if self._given is None:
            raise CheckpointAbortedError(
                f"{self._storage.url}: the query was attached, so its program is not here to run "
                "its last epochs: start it again from its checkpointLocation, and stop that query"
            )

    def _run_epoch(self, drain: Drain | None) -> None:
        self.check_possible()
        assert self._given is not None  # it was checked
        self._given(drain)

    def found(self) -> Draining:
        """Return whether a drain was begun and has not ended; another driver may be at it.

        It only reads: a drain that nobody has decided on yet is void once somebody finishes it.
        """
        draining = self._interrupted_drain()
        if draining is None:
            return Draining.NONE
        try:
            is_begun = self._storage.read(_decision_of(draining)) == _BEGUN
        except FileNotFoundError:
            is_begun = False
        is_due = is_begun and not self._has_run(draining)
        return Draining.DUE if is_due else Draining.AT_ITS_END

    def finish_interrupted(self, lease: Lease) -> None:
        """Finish a drain that was interrupted; on the driver, before anything else is done.

        `lease` is looked at before each step. FencedError means that another driver was
        started, which finishes the drain. CheckpointAbortedError means that the drain cannot be
        finished, or that a driver began another epoch at its watermark.
        """
        draining = self._interrupted_drain()
        if draining is None:
            return
        lease.check()
        if self._is_void(draining):
            self._give_up(draining)
            return
        logger.warning("%s: finishing an interrupted drain", self._storage.url)
        self._finish(draining, lease)

    def finish_last_step(self) -> bool:
        """Finish a drain that was interrupted after its epoch; runs no epoch.

        Until then a file of Spark's logs may be away, so a start does it before it reads them.

        Returns whether there was such a drain.
        """
        draining = self._interrupted_drain()
        if draining is not None and self._is_void(draining):
            self._give_up(draining)
            return False
        if draining is None or not self._has_run(draining):
            return False
        logger.warning("%s: finishing the last step of a drain", self._storage.url)
        self._put_true_watermark(draining)
        return True

    def _interrupted_drain(self) -> _Draining | None:
        if not self._storage.exists(DRAIN_MARKER):
            return None
        holds = "the epoch that drained the query"
        return read_small_file(self._storage, DRAIN_MARKER, _Draining, holds, RESTORE)

    def _is_void(self, draining: _Draining) -> bool:
        """Return whether its driver was fenced, or ended, before it began the drain.

        Nothing of it was done then, and newer drivers may have run the epoch, with input.
        """
        return (
            self._has_decided(draining, _VOID)
            or self._storage.read(_decision_of(draining)) == _VOID
        )

    def _give_up(self, draining: _Draining) -> None:
        logger.warning("%s: a drain had not begun, and does not", self._storage.url)
        # The marker first: its driver, which may decide anew, looks for it again.
        self._storage.delete([DRAIN_MARKER])
        self._storage.delete([_decision_of(draining)])

    def _has_decided(self, draining: _Draining, decision: bytes) -> bool:
        """Decide whether a drain is done, unless somebody has."""
        try:
            self._storage.write(_decision_of(draining), [decision])
        except FileExistsError:
            return False
        return True

    def finish_begun(self, lease: Lease) -> None:
        """Finish an interrupted epoch, because its output may have reached the sink already.

        An interrupted drain is finished as such: its epoch has another watermark than the query.
        Parameter and errors are those of :meth:`finish_interrupted`.
        """
        self.finish_interrupted(lease)
        begun = self._log.begun_epoch()
        if begun is not None and begun > self._committed_epoch():
            logger.info("%s: finishing the interrupted epoch %s", self._storage.url, begun)
            self._run_epoch(None)
            if self._committed_epoch() < begun:
                raise CheckpointAbortedError(
                    f"{self._storage.url}: epoch {begun} was interrupted and could not be "
                    "finished; start the query again"
                )

    def drain(
        self,
        handles_of: Callable[[int], Sequence[Handle]],
        operators: int,
        lease: Lease,
    ) -> None:
        """Fire every event-time timer; on return the output has reached the sink.

        `lease` is looked at before each step. FencedError means that another driver was
        started, which finishes the drain. CheckpointAbortedError means that timers set new timers
        again and again, that a timer is later than Spark's last watermark, or that epochs cannot be
        run here.
        """
        self.check_possible()
        last_ms = _LAST_ALONE_MS if operators == 1 else _LAST_OF_SEVERAL_MS
        for _ in range(MAX_EPOCHS):
            epoch = self._log.committed_epoch()
            if epoch is None:
                return
            timeouts = [
                handle.timeout_ms
                for handle in handles_of(epoch)
                if handle.time_mode == TimeMode.EVENT_TIME
                and handle.timeout_ms is not None
                and handle.timeout_ms != QUARANTINED_TIMERS_MS
            ]
            if not timeouts:
                return
            if min(timeouts) >= last_ms:
                raise CheckpointAbortedError(
                    f"{self._storage.url}: a timer at {min(timeouts)} ms is later than Spark's "
                    "last watermark, so it cannot fire: stop the query without drain"
                )
            lease.check()
            self._begin(epoch, min(max(timeouts) + 1, last_ms), lease)
        raise CheckpointAbortedError(
            f"{self._storage.url}: after {MAX_EPOCHS} epochs timers still set new timers: the "
            "query cannot be drained; stop it without drain"
        )

    def _begin(self, epoch: int, drained_at_ms: int, lease: Lease) -> None:
        watermark_ms = self._log.watermark_ms(epoch)
        token = secrets.token_hex(6)
        draining = _Draining(epoch + 1, drained_at_ms, watermark_ms, now_ms(), token)
        self._storage.write(DRAIN_MARKER, [msgspec.json.encode(draining)])
        try:
            lease.check()
        except BaseException:
            if self._has_decided(draining, _VOID):
                self._give_up(draining)
            raise
        # A newer driver that found the marker, and no decision, has made it void, and removed it.
        if not self._has_decided(draining, _BEGUN) or self._interrupted_drain() != draining:
            raise FencedError(
                f"{self._storage.url}: another driver was started before the drain began. Run a "
                "query once at a time: let that driver run it, or start it again"
            )
        self._finish(draining, lease)

    def _finish(self, draining: _Draining, lease: Lease) -> None:
        if not self._has_run(draining):
            self._put_offsets(draining, draining.drained_at_ms)
            self._run(draining)
            lease.check()
        self._put_true_watermark(draining)

    def _run(self, draining: _Draining) -> None:
        """Run the epoch that drains, unless the driver before this one commits it first."""
        epoch = draining.epoch
        try:
            self._run_epoch(Drain(epoch, draining.watermark_ms))
        except Exception as exc:
            if not self._has_run(draining):
                raise
            logger.warning(
                "%s: epoch %s, which drains the query, was committed by another driver: %s",
                self._storage.url,
                epoch,
                exc,
            )
        if not self._has_run(draining):
            raise CheckpointAbortedError(
                f"{self._storage.url}: epoch {epoch}, which drains the query, was not committed; "
                "start the query again to finish it"
            )

    def _has_run(self, draining: _Draining) -> bool:
        """Return whether the epoch that drains was committed, also if its commit is away now."""
        return self._committed_epoch() >= draining.epoch or self._kept_commit(draining) is not None

    def _put_true_watermark(self, draining: _Draining) -> None:
        """End the drain of an epoch that has run; whoever repeats it writes the same again."""
        commit = self._kept_commit(draining) or self._keep_commit(draining)
        self._mend_next_epoch(draining)
        self._put_offsets(draining, draining.watermark_ms)
        self._log.replace(f"commits/{draining.epoch}", commit)
        self._storage.delete([DRAINED_COMMIT])
        # The marker alone is void, so nothing else is done then.
        self._storage.delete([_decision_of(draining)])
        self._storage.delete([DRAIN_MARKER])

    def _mend_next_epoch(self, draining: _Draining) -> None:
        """Give the next epoch the true watermark, if Spark began it at that of the drain."""
        begun, watermark_ms = self._log.begun_epoch(), draining.watermark_ms
        if begun != draining.epoch + 1:
            return
        entry = self._log.offsets_entry(begun)
        if entry.metadata["batchWatermarkMs"] != draining.drained_at_ms:
            return
        # Its tasks were not called, because no row was in time.
        if self._committed_epoch() >= begun:
            raise CheckpointAbortedError(
                f"{self._storage.url}: epoch {begun} ran at the watermark of a drain, because "
                "two drivers ran the query at once. Rows of it were taken for late: call "
                "pyspark_ckpt.location(path).rollback(to, force=True) with a checkpoint of an "
                f"epoch before {begun}"
            )
        self._put(begun, entry, {"batchWatermarkMs": watermark_ms})

    def _kept_commit(self, draining: _Draining) -> str | None:
        if not self._storage.exists(DRAINED_COMMIT):
            return None
        content = self._storage.read(DRAINED_COMMIT)  # as large as Spark's own
        try:
            kept = msgspec.json.decode(content, type=_DrainedCommit)
        except JSON_ERRORS as exc:
            url = self._storage.url_of(DRAINED_COMMIT)
            raise corrupt_file(url, f"it holds no commit of Spark ({exc})", RESTORE) from exc
        # A driver that was fenced, and was slow, may have written that of an earlier drain.
        return kept.commit if kept.epoch == draining.epoch else None

    def _keep_commit(self, draining: _Draining) -> str:
        """Keep the commit with the true watermark, before Spark's own is replaced."""
        version, fields = self._log.commits_entry(draining.epoch).split("\n", 1)
        times = {"nextBatchWatermarkMs": draining.watermark_ms}
        commit = f"{version}\n{json.dumps({**json.loads(fields), **times})}"
        self._storage.delete([DRAINED_COMMIT])
        kept = _DrainedCommit(draining.epoch, commit)
        self._storage.write(DRAINED_COMMIT, [msgspec.json.encode(kept)])
        return commit

    def _committed_epoch(self) -> int:
        epoch = self._log.committed_epoch()
        return -1 if epoch is None else epoch

    def _put_offsets(self, draining: _Draining, watermark_ms: int) -> None:
        """Write the epoch's offsets: the offsets of the epoch before it, at another watermark."""
        before = self._log.offsets_entry(draining.epoch - 1)
        times = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": draining.triggered_at_ms}
        self._put(draining.epoch, before, times)

    def _put(self, epoch: int, entry: OffsetsEntry, times: dict[str, int]) -> None:
        offsets = replace(entry, metadata={**entry.metadata, **times})
        self._log.replace(f"offsets/{epoch}", offsets.text())
