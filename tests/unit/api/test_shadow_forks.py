"""What begins a shadow leaves nothing that nobody would delete, and hides no error."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.api.shadowing import Change, check_parent, deleted_on_failure
from pyspark_ckpt.restore.location.swap import live_shadows, remove_leftovers_of_restarts
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import LocalStorage
from tests.faults.leases import ALONE


def test_the_directory_of_a_shadow_that_could_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is the first one; what cannot be deleted goes at the next start of the query."""

    def is_busy(storage: LocalStorage, name: str) -> None:
        raise OSError(name)

    def fail() -> None:
        msg = "the candidate does not fit"
        raise ckpt.errors.PlanError(msg)

    location = LocalStorage(tmp_path)
    made = location.child("_shadow-1")
    made.write("savepoint/file", [b"x"])
    live_shadows.add(made.name)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete_directory", is_busy)
        with pytest.raises(ckpt.errors.PlanError, match="does not fit"), deleted_on_failure(made):
            fail()
    assert f"{made.url} cannot be deleted" in caplog.text
    remove_leftovers_of_restarts(FencedStorage(location, ALONE))
    assert location.list() == []


def test_a_shadow_in_the_location_of_a_query(tmp_path: Path) -> None:
    location = LocalStorage(tmp_path)
    check_parent(location)
    location.write("metadata", [b'{"id": "q"}'])
    with pytest.raises(
        ckpt.errors.ConfigurationError, match="would delete the files of the shadow"
    ):
        check_parent(location)


def test_options_of_the_sink_are_refused() -> None:
    Change(list, None, {"spark.ckpt.state.backend.type": "heap"})
    with pytest.raises(
        ckpt.errors.ConfigurationError, match="options has path, checkpointLocation:"
    ):
        Change(list, None, {"path": "out", "checkpointLocation": "elsewhere"})
