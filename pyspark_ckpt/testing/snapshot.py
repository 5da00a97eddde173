"""The state of a harness at the end of an epoch, with all files and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_ckpt.errors import IncompatibleStateError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.testing.harness_clock import HarnessClock
from pyspark_ckpt.testing.harness_input import HarnessInput, SeenColumns
from pyspark_ckpt.testing.harness_subtask import HarnessSubtask


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """What :meth:`ProcessorHarness.snapshot` returns; it outlives its harness.

    Parameters
    ----------
    handle : Handle
        The handle of the state's version, as in a query's checkpoint.
    files : Mapping of str to bytes
        The durable files that the handle refers to, by path.
    columns : SeenColumns
        The columns of the keys and rows that the harness has seen.
    time_mode : str
        The harness's time mode.
    processing_time_ms : int
        The harness's processing time in milliseconds.
    watermark_ms : int or None
        The harness's watermark in milliseconds, ``None`` without event time.

    Examples
    --------
    >>> snapshot = harness.snapshot()
    >>> ProcessorHarness.restored(Visits(), snapshot).peekValueState("count", "ada")
    (2,)
    """

    handle: Handle
    files: Mapping[str, bytes]
    columns: SeenColumns
    time_mode: str
    processing_time_ms: int
    watermark_ms: int | None


def take(subtask: HarnessSubtask, input: HarnessInput, clock: HarnessClock) -> HarnessSnapshot:
    """Return the state that the last epoch left, with copies of its files."""
    files = {}
    for reference in subtask.handle.files():
        with subtask.storage.open_verified(reference) as file:
            files[reference.path] = file.read()
    return HarnessSnapshot(
        subtask.handle,
        files,
        input.seen,
        clock.mode.value,
        clock.processing_time_ms,
        clock.watermark_ms,
    )


def put_back(
    snapshot: HarnessSnapshot, subtask: HarnessSubtask, input: HarnessInput, clock: HarnessClock
) -> None:
    """Return a harness to a snapshot.

    The harness stays as it was if ``IncompatibleStateError`` is raised.
    """
    ours = subtask.handle
    for what, stored, wanted in (
        ("uid", snapshot.handle.uid, ours.uid),
        ("max_parallelism", snapshot.handle.max_parallelism, ours.max_parallelism),
    ):
        if stored != wanted:
            raise IncompatibleStateError(
                f"{subtask.where}: the snapshot has {what} {stored!r}, the harness {wanted!r}: "
                "use ProcessorHarness.restored, which takes both from the snapshot"
            )
    for path, content in snapshot.files.items():
        if not subtask.storage.exists(path):
            subtask.storage.write(path, [content])
    with clock.kept_if_well():
        clock.set_back(snapshot.processing_time_ms, snapshot.watermark_ms)
        subtask.handle = snapshot.handle
        try:
            subtask.check()
        except BaseException:
            subtask.handle = ours
            raise
    input.go_on(snapshot.columns)
