"""A start with ``restoreFrom`` at a location that has epochs: the query continues from those."""

from __future__ import annotations

from pyspark_ckpt.formats.metadata import Origin
from pyspark_ckpt.formats.origin import give_up_claim, read_origin
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.plan import RestoreRequest
from pyspark_ckpt.settings import ClaimMode
from pyspark_ckpt.storage.open import Storage, open_storage

logger = library_logger(__name__)


def note_not_restored(location: Storage, checkpoints: Storage, request: RestoreRequest) -> None:
    """Log that a path is ignored; as a warning, unless the location was restored from it.

    A claim is given up, durably, if this start names the same path with ``NO_CLAIM``. The driver
    that claimed it may have died before the query had a checkpoint.
    """
    path, origin = request.path, read_origin(checkpoints)
    if origin is not None and _is_or_replaces(origin, path):
        logger.info("%s has committed epochs: not restored from %s", location.url, path)
        _compare_claims(checkpoints, origin, request.claim_mode)
        return
    before = "was never restored" if origin is None else f"was restored from {origin.path}"
    logger.warning(
        "restoreFrom(%r) is ignored: %s has committed epochs, which the query continues (it "
        "%s); to start from that path, give a fresh checkpointLocation or call "
        "pyspark_ckpt.rollback",
        path,
        location.url,
        before,
    )


def _compare_claims(checkpoints: Storage, origin: Origin, claim_mode: ClaimMode) -> None:
    if claim_mode is origin.claim_mode:
        return
    if origin.claim_mode is ClaimMode.CLAIM:
        give_up_claim(checkpoints)
    logger.warning(
        "%s is not deleted: the query was restored from it with %s, and this start gives %s. "
        "Dispose of it yourself if nobody needs it",
        origin.path,
        origin.claim_mode,
        claim_mode,
    )


def _is_or_replaces(origin: Origin, path: str) -> bool:
    """Return whether a location was restored from a path, or by fallback from one before it."""
    url = open_storage(path).url
    if origin.path == url:
        return True
    return bool(origin.skipped) and open_storage(path).parent().url == (
        open_storage(origin.path).parent().url
    )
