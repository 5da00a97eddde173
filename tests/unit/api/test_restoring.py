"""Renaming a uid makes a new savepoint and never changes the old one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt import location
from pyspark_ckpt.errors import CheckpointNotFoundError, RestoreError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.storage.open import LocalStorage


@pytest.fixture
def savepoint(handle: Handle, tmp_path: Path) -> Path:
    """Operators a and b, one file each."""
    storage = LocalStorage(tmp_path / "checkpoints")
    operators = tuple(
        OperatorMetadata(
            operator_id=number, uid=uid, parallelism=4, max_parallelism=128, key_schema="{}",
            backend="heap", handles=(msgspec.structs.replace(handle, uid=uid),),
        )
        for number, uid in enumerate("ab")
    )  # fmt: skip
    snapshot = CheckpointMetadata(
        checkpoint_id=None, kind=CheckpointKind.CHECKPOINT,
        root="..", epoch=6, query_id="0123456789",
        query_name="q", parent=None, spark_version="4.3.0", library_version="0.1.0",
        triggered_at_ms=1, completed_at_ms=2, watermark_ms=3, offsets_entry="v1\n{}\n-",
        commits_entry="v1\n{}", source_logs=(), operators=operators,
    )  # fmt: skip
    return Path(
        write_savepoint(
            snapshot, storage, str(tmp_path / "savepoints"), SavepointFormat.NATIVE
        ).path
    )


def content(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_operators_and_their_handles_get_the_new_uid(savepoint: Path, tmp_path: Path) -> None:
    before = content(savepoint)
    made = location(str(savepoint)).rename_uid({"a": "b", "b": "c"}, str(tmp_path / "renamed"))
    assert content(savepoint) == before
    source = RestoreSource(made.path)
    assert [operator.uid for operator in source.metadata.operators] == ["b", "c"]
    assert [h.uid for o in source.metadata.operators for h in o.handles] == ["b", "c"]
    assert source.metadata.parent is not None
    assert source.metadata.parent.path == str(savepoint)
    source.verify()


@pytest.mark.parametrize("uids", [{"x": "y"}, {"a": "b"}, {"a": ""}])
def test_impossible_names_are_refused_and_nothing_made(
    savepoint: Path, tmp_path: Path, uids: dict[str, str]
) -> None:
    with pytest.raises(RestoreError, match="uid"):
        location(str(savepoint)).rename_uid(uids, str(tmp_path / "renamed"))
    assert not (tmp_path / "renamed").exists()


def test_a_path_without_a_savepoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        location(str(tmp_path / "nowhere")).rename_uid({"a": "b"}, str(tmp_path))
