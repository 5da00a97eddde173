"""The releases of a query as its tasks see them."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ckpt.operator.descriptor import Runtime
from pyspark_ckpt.operator.quarantine.releases import NO_KEY, ReleasedKeys, ReleaseFiles
from pyspark_ckpt.storage.open import open_storage


def release_files(runtime: Runtime) -> ReleaseFiles:
    """Return the releases of the query that a task belongs to."""
    storage = open_storage(runtime.checkpoints_directory)
    if runtime.query_subdirectory:
        storage = storage.child(runtime.query_id)
    return ReleaseFiles(storage, len(runtime.rolled_back))


class ReleasesOfEpoch:
    """What an epoch releases of an operator; reads a file only when it is asked."""

    def __init__(self, runtime: Runtime, uid: str, epoch: int) -> None:
        self._files: Callable[[], ReleaseFiles] = lambda: release_files(runtime)
        self._uid = uid
        self._epoch = epoch

    def keys(self) -> ReleasedKeys:
        """Return the keys that the epoch releases, as the task that woke the subtask decided."""
        decision = self._files().decided(self._epoch)
        return NO_KEY if decision is None else decision.releases_of(self._uid)

    def arm(self) -> None:
        """Have later epochs decide what they release."""
        self._files().arm(self._epoch)


class _NoReleases:
    """What an epoch without a query releases: no key."""

    def keys(self) -> ReleasedKeys:
        """Return no key."""
        return NO_KEY

    def arm(self) -> None:
        """Do nothing."""


NO_RELEASES = _NoReleases()
