"""What a killed driver left in a location is removed, and what this process works on stays."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ckpt.formats.layout import IDENTITY_NAME, SEEDINGS
from pyspark_ckpt.restore.location.seedings import begin_seeding, is_half_seeded
from pyspark_ckpt.restore.location.swap import live_shadows, remove_leftovers_of_restarts
from pyspark_ckpt.restore.seeding import write_query_id
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.owner import check_owner, claim_directory
from tests.faults.leases import ALONE


def test_shadows_of_killed_drivers_are_removed(tmp_path: Path) -> None:
    location = LocalStorage(tmp_path)
    names = ("_shadow-left", "_shadow-live", "_before_restart-1", "state", "_before_rollback-1")
    for name in names:
        location.write(f"{name}/file", [b"x"])
    live_shadows.add("_shadow-live")
    try:
        remove_leftovers_of_restarts(FencedStorage(location, ALONE))
    finally:
        live_shadows.discard("_shadow-live")
    assert sorted(location.list()) == ["_before_rollback-1", "_shadow-live", "state"]


class KilledError(Exception):
    """The driver is killed."""


class EndsAfter(LocalStorage):
    """A location whose driver is killed after so many deletions."""

    def __init__(self, root: Path, deletions: int) -> None:
        super().__init__(root)
        self._left = deletions

    def delete(self, relatives: Iterable[str]) -> None:
        for relative in relatives:
            self._count()
            super().delete([relative])

    def remove_if_empty(self, relative: str) -> None:
        self._count()
        super().remove_if_empty(relative)

    def _count(self) -> None:
        if self._left == 0:
            raise KilledError
        self._left -= 1


@pytest.mark.parametrize("deletions", range(10))
def test_a_restore_that_is_killed_while_it_clears_a_location_does_not_lock_it(
    tmp_path: Path, deletions: int
) -> None:
    """In a bucket, the owner's record may still be there: a listing lacked it (seed 53851)."""
    location = LocalStorage(tmp_path / "location")
    begin_seeding(location).clear(None)
    query_id = write_query_id(location)
    location.write("state/0/1.delta", [b"x"])
    location.write("offsets/0", [b"x"])
    directory = LocalStorage(tmp_path / "checkpoints" / query_id)
    claim_directory(location, directory)
    with suppress(KilledError):
        begin_seeding(EndsAfter(location.root, deletions)).clear(None)
    known = SparkLog(location).query_id()
    if known is not None:
        assert known == query_id
        check_owner(location, directory)
    assert is_half_seeded(location)
    begin_seeding(location).clear(None)
    assert sorted(location.list()) == [IDENTITY_NAME, SEEDINGS]
