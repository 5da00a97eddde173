"""Records that users see: completed and aborted checkpoints, savepoints and their formats."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.clock import utc_text
from pyspark_ckpt.formats.handle import CANONICAL_FORMAT
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.html_form import html_facts, size_text


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that is durable.

    Parameters
    ----------
    checkpoint_id : int
        Its number in the query.
    path : str
        Its ``chk-...`` directory, which ``restoreFrom`` takes.
    epoch : int
        The epoch whose end it stores.
    triggered_at_ms : int
        When it was triggered, in milliseconds since 1970.
    duration_ms : int
        How long it took, in milliseconds.
    size_bytes : int
        Bytes of all files that it refers to.
    requests : dict of str to int, optional
        Requests of the driver to the storage since its checkpoint before, by kind (``put``,
        ``get``, ``head``, ``list``, ``delete``); empty on a disk, ``None`` if another driver took
        the checkpoint.

    Examples
    --------
    >>> checkpoint = query.triggerCheckpoint()
    >>> checkpoint.path.endswith(f"chk-{checkpoint.checkpoint_id}")
    True
    """

    checkpoint_id: int
    path: str
    epoch: int
    triggered_at_ms: int
    duration_ms: int
    size_bytes: int
    requests: dict[str, int] | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        checkpoint_id: int,
        path: str,
        metadata: CheckpointMetadata,
        requests: dict[str, int] | None = None,
    ) -> CompletedCheckpoint:
        """Describe a checkpoint by its metadata, and by the requests that this driver counted."""
        return cls(
            checkpoint_id=checkpoint_id,
            path=path,
            epoch=metadata.epoch,
            triggered_at_ms=metadata.triggered_at_ms,
            duration_ms=metadata.completed_at_ms - metadata.triggered_at_ms,
            size_bytes=metadata.size_bytes,
            requests=requests,
        )

    def _repr_html_(self) -> str:
        facts = {
            "epoch": self.epoch,
            "triggered": utc_text(self.triggered_at_ms),
            "duration": f"{self.duration_ms} ms",
            "size": size_text(self.size_bytes),
            "path": self.path,
        }
        return html_facts(f"Checkpoint {self.checkpoint_id}", facts)


@dataclass(frozen=True, slots=True)
class AbortedCheckpoint:
    """A checkpoint or savepoint that was aborted, and why.

    Parameters
    ----------
    kind : CheckpointKind
        ``checkpoint`` or ``savepoint``.
    checkpoint_id : int or None
        Its number in the query; ``None`` for a savepoint, and for a checkpoint that had none yet,
        because the committed epochs could not be listed.
    epoch : int or None
        The epoch whose end it would have stored, if known.
    triggered_at_ms : int
        When it was triggered, in milliseconds since 1970.
    duration_ms : int
        How long it took, in milliseconds.
    reason : AbortReason
        Why it was aborted.
    message : str
        The text of the error.

    Examples
    --------
    >>> aborted = ckpt.results.AbortedCheckpoint(
    ...     ckpt.results.CheckpointKind.CHECKPOINT,
    ...     checkpoint_id=3,
    ...     epoch=7,
    ...     triggered_at_ms=0,
    ...     duration_ms=600_000,
    ...     reason=ckpt.results.AbortReason.EXPIRED,
    ...     message="the jobs took too long",
    ... )
    >>> aborted.reason.counts
    True
    """

    kind: CheckpointKind
    checkpoint_id: int | None
    epoch: int | None
    triggered_at_ms: int
    duration_ms: int
    reason: AbortReason
    message: str

    def _repr_html_(self) -> str:
        facts = {
            "kind": self.kind.value,
            "epoch": self.epoch,
            "triggered": utc_text(self.triggered_at_ms),
            "duration": f"{self.duration_ms} ms",
            "reason": self.reason.value,
            "message": self.message,
        }
        return html_facts(f"Aborted: {self.kind.value} {self.checkpoint_id or ''}", facts)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A completed savepoint.

    Parameters
    ----------
    path : str
        Its ``savepoint-...`` directory, which ``restoreFrom`` takes.
    epoch : int
        The epoch whose end it stores.
    query_id : str
        The id of the query.
    triggered_at_ms : int
        When it was triggered, in milliseconds since 1970.
    completed_at_ms : int
        When it was complete, in milliseconds since 1970.
    size_bytes : int
        Bytes of all files.
    files : int
        Number of files.
    format : str
        ``CANONICAL`` or ``NATIVE``.

    Examples
    --------
    >>> savepoint.epoch, savepoint.format
    (0, 'CANONICAL')
    """

    path: str
    epoch: int
    query_id: str
    triggered_at_ms: int
    completed_at_ms: int
    size_bytes: int
    files: int
    format: str = SavepointFormat.CANONICAL.value

    @classmethod
    def of(cls, path: str, metadata: CheckpointMetadata, metadata_bytes: int) -> Savepoint:
        """Describe a savepoint by its metadata, whose file has `metadata_bytes`."""
        files = {reference.path: reference.size_bytes for reference in metadata.files()}
        savepoint_format = format_of(metadata)
        assert savepoint_format is not None  # it is not a checkpoint
        return cls(
            path=path,
            epoch=metadata.epoch,
            query_id=metadata.query_id,
            triggered_at_ms=metadata.triggered_at_ms,
            completed_at_ms=metadata.completed_at_ms,
            size_bytes=sum(files.values()) + metadata_bytes,
            files=len(files) + 1,
            format=savepoint_format.value,
        )

    def _repr_html_(self) -> str:
        facts = {
            "epoch": self.epoch,
            "query": self.query_id,
            "completed": utc_text(self.completed_at_ms),
            "duration": f"{self.completed_at_ms - self.triggered_at_ms} ms",
            "size": f"{size_text(self.size_bytes)} in {self.files} files, {self.format}",
            "path": self.path,
        }
        return html_facts("Savepoint", facts)


def format_of(metadata: CheckpointMetadata) -> SavepointFormat | None:
    """Return the format that a savepoint's files have, ``None`` for a checkpoint."""
    if not metadata.is_savepoint:
        return None
    handles = [handle for operator in metadata.operators for handle in operator.handles]
    is_canonical = all(
        handle.base is not None and handle.base.format == CANONICAL_FORMAT and not handle.segments
        for handle in handles
    )
    return SavepointFormat.CANONICAL if is_canonical else SavepointFormat.NATIVE
