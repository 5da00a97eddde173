"""What a killed driver left in a location is removed, and what this process works on stays."""

from __future__ import annotations

from pathlib import Path

from pyspark_ckpt.restore.rollback import live_shadows, remove_leftovers_of_restarts
from pyspark_ckpt.storage.open import LocalStorage


def test_shadows_of_killed_drivers_are_removed(tmp_path: Path) -> None:
    location = LocalStorage(tmp_path)
    names = ("_shadow-left", "_shadow-live", "_before_restart-1", "state", "_before_rollback-1")
    for name in names:
        location.write(f"{name}/file", [b"x"])
    live_shadows.add("_shadow-live")
    try:
        remove_leftovers_of_restarts(location)
    finally:
        live_shadows.discard("_shadow-live")
    assert sorted(location.list()) == ["_before_rollback-1", "_shadow-live", "state"]
