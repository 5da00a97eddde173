"""The checkpoint or savepoint that a query was restored from; kept next to its checkpoints."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.formats.location_files import read_small_file
from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.settings import ClaimMode
from pyspark_ckpt.storage.open import Storage

ORIGIN_NAME = "origin.json"
UNCLAIMED_NAME = "origin-unclaimed"


@dataclass(frozen=True, slots=True)
class RestoredFrom:
    """What a query was restored from; ``CheckpointedQuery.lastRestore``.

    Parameters
    ----------
    path : str
        The checkpoint or savepoint.
    epoch : int
        Its epoch.
    query_id : str
        The id of the query that it was taken of.
    claim_mode : str
        ``NO_CLAIM`` or ``CLAIM``.
    needs_original : bool
        Whether this query still needs a file of it. It is always false, because all files were
        copied before the query started.
    skipped : tuple of str
        Why each newer checkpoint was skipped, newest first; see
        ``spark.ckpt.execution.state-recovery.fallback``.

    Examples
    --------
    >>> restore = ckpt.results.RestoredFrom("/savepoints/savepoint-1", 7, "5f0a", "NO_CLAIM")
    >>> restore.needs_original
    False
    """

    path: str
    epoch: int
    query_id: str
    claim_mode: str
    needs_original: bool = False
    skipped: tuple[str, ...] = ()

    @classmethod
    def of(cls, origin: Origin) -> RestoredFrom:
        """Return the public record of a stored origin."""
        return cls(
            path=origin.path,
            epoch=origin.epoch,
            query_id=origin.query_id,
            claim_mode=origin.claim_mode.value,
            skipped=origin.skipped,
        )


def write_origin(checkpoints: Storage, origin: Origin) -> None:
    """Store what a query is restored from, durably, in its checkpoints directory."""
    checkpoints.write(ORIGIN_NAME, [msgspec.json.encode(origin)])


def give_up_claim(checkpoints: Storage) -> None:
    """Let nobody delete what a query was restored from with ``CLAIM``; durable."""
    with suppress(FileExistsError):
        checkpoints.write(UNCLAIMED_NAME, [b"a later start named the origin with NO_CLAIM\n"])


def read_origin(checkpoints: Storage) -> Origin | None:
    """Return what a query was restored from, ``None`` if it was not restored.

    Its claim mode is ``NO_CLAIM`` once the claim was given up.
    """
    if not checkpoints.exists(ORIGIN_NAME):
        return None
    origin = read_small_file(
        checkpoints,
        ORIGIN_NAME,
        Origin,
        "what the query was restored from",
        "delete the file; only this record is then lost",
    )
    if origin.claim_mode is ClaimMode.CLAIM and checkpoints.exists(UNCLAIMED_NAME):
        return msgspec.structs.replace(origin, claim_mode=ClaimMode.NO_CLAIM)
    return origin
