"""A query whose directory is on a mount that cannot create files exclusively."""

from __future__ import annotations

import pytest

import pyspark_ckpt as ckpt
from tests.query.harness import CHECKPOINT_DIR, SAVEPOINT_DIR, Job, refused
from tests.query.model import events_of
from tests.servers.fuse import mounted


@pytest.mark.parametrize("key", [CHECKPOINT_DIR, SAVEPOINT_DIR])
def test_such_a_mount_is_refused_before_anything_begins(
    job: Job, key: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job.feed.add(events_of(0))
    with mounted(tmp_path_factory.mktemp("fuse")) as place:
        with refused(ckpt.errors.ConfigurationError, "neither hard links", unchanged=job.base):
            job.using({key: str(place)}).start()
        assert list(place.iterdir()) == []
