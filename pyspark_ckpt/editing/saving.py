"""Writes an edit as a savepoint: copies what it keeps, and runs the jobs of what it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from pyspark.sql import SparkSession

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.editing.operator_edit import OperatorEdit
from pyspark_ckpt.editing.operator_job import OperatorJob, Target
from pyspark_ckpt.editing.stored_times import Times
from pyspark_ckpt.errors import CheckpointAbortedError, CkptError
from pyspark_ckpt.formats.metadata import EpochContents, OperatorMetadata, SourceLog
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.savepoint.job import SavepointJob
from pyspark_ckpt.savepoint.progress import shown_progress
from pyspark_ckpt.savepoint.savepoint import NewSavepoint
from pyspark_ckpt.spark.jobs import JOB_ERRORS, SparkJobs, error_text
from pyspark_ckpt.storage.open import Storage

_NEVER_BUSY_MS = float("inf")
"""No query waits for the slots."""


@dataclass(frozen=True, slots=True)
class Saving:
    """The work of writing a savepoint.

    `ids` has the id of each operator by uid. The files of `contents` and of stored operators lie in
    `source`, which is ``None`` if there are none. `failed_read` returns the error of an operator's
    job that failed because its rows could not be read, ``None`` if it does not know the cause.
    """

    spark: SparkSession
    contents: EpochContents
    operators: tuple[OperatorEdit, ...]
    ids: Mapping[str, int]
    source: Storage | None
    logs: list[tuple[SourceLog, bytes]]
    failed_read: Callable[[str, Exception], CkptError | None] = lambda uid, error: None  # noqa: ARG005

    def save(
        self, directory: str, check: Callable[[tuple[OperatorMetadata, ...]], None]
    ) -> Savepoint:
        """Write the savepoint; `check` raises if it may not be completed.

        If it fails, nothing remains in the directory.
        """
        new = NewSavepoint(self.contents.query_id, directory)
        try:
            return new.complete(self.contents, lambda new: self._written(new, check), self.source)
        except BaseException:
            new.discard()
            raise

    def _written(
        self, new: NewSavepoint, check: Callable[[tuple[OperatorMetadata, ...]], None]
    ) -> tuple[OperatorMetadata, ...]:
        for log, data in self.logs:
            new.target.write(log.file.path, [data])
        what = f"savepoint {new.path}"
        jobs = SparkJobs(self.spark, what)
        copied = self._copied(new, what, jobs)
        written = self._rewritten(new, what, jobs)
        by_uid = {each.uid: each for each in (*copied, *written)}
        operators = tuple(by_uid[each.operator.uid] for each in self.operators)
        check(operators)
        return operators

    def _copied(self, new: NewSavepoint, what: str, jobs: SparkJobs) -> Iterable[OperatorMetadata]:
        """Copy the operators that do not change."""
        kept = [each for each in self.operators if not each.is_touched]
        if not kept:
            return
        assert self.source is not None  # only stored operators do not change
        stored = [each.stored for each in kept if each.stored is not None]
        copies = [
            new.copy_of(handle, self.source, SavepointFormat.CANONICAL)
            for operator in stored
            for handle in operator.handles
        ]
        job = SavepointJob(self.spark, what, jobs, lambda: _NEVER_BUSY_MS)
        handles = iter(job(copies) if copies else ())
        for operator in stored:
            found = tuple(next(handles) for _ in operator.handles)
            yield msgspec.structs.replace(
                operator, operator_id=self.ids[operator.uid], handles=found
            )

    def _rewritten(
        self, new: NewSavepoint, what: str, jobs: SparkJobs
    ) -> Iterable[OperatorMetadata]:
        """Write the operators that change."""
        changed = [each for each in self.operators if each.is_touched]
        contents = self.contents
        target = Target(new.target.url, new.token, contents.query_id, contents.epoch)
        times = Times(now_ms(), contents.watermark_ms)
        total = sum(each.operator.parallelism for each in changed)
        with shown_progress(what, total, jobs.tasks) as progress, jobs.running():
            for each in changed:
                try:
                    handles = OperatorJob(self.spark, each).written(target, times)
                except CkptError:  # some are PySpark's errors too
                    raise
                except JOB_ERRORS as exc:
                    uid = each.operator.uid
                    raise self.failed_read(uid, exc) or CheckpointAbortedError(
                        f"{what}: writing operator {uid!r} on the executors failed: "
                        f"{error_text(exc)}"
                    ) from exc
                progress.advance(each.operator.parallelism)
                yield each.metadata(self.ids[each.operator.uid], tuple(handles))
