"""Metadata of a checkpoint or savepoint: the contents of an epoch with id, kind and times."""

from __future__ import annotations

import msgspec
import pytest

from pyspark_ckpt.formats.metadata import CheckpointMetadata, EpochContents, metadata_of
from pyspark_ckpt.formats.metadata_file import decode_metadata, encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind

ADDED = {"checkpoint_id", "kind", "root", "triggered_at_ms", "completed_at_ms"}


def test_the_contents_of_an_epoch_have_every_field_but_id_kind_and_times() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(EpochContents)}
    stored = {field.name: field for field in msgspec.structs.fields(CheckpointMetadata)}
    assert stored.keys() - fields.keys() == ADDED
    assert fields == {name: stored[name] for name in fields}


@pytest.mark.parametrize(
    ("kind", "checkpoint_id", "root"),
    [(CheckpointKind.CHECKPOINT, 7, ".."), (CheckpointKind.SAVEPOINT, None, ".")],
)
def test_metadata_are_made_of_contents_and_give_them_back(
    snapshot: CheckpointMetadata, kind: CheckpointKind, checkpoint_id: int | None, root: str
) -> None:
    contents = snapshot.contents()
    metadata = metadata_of(
        contents, kind, checkpoint_id=checkpoint_id, triggered_at_ms=11, completed_at_ms=12
    )
    assert (metadata.kind, metadata.checkpoint_id, metadata.root) == (
        kind.value,
        checkpoint_id,
        root,
    )
    assert (metadata.triggered_at_ms, metadata.completed_at_ms) == (11, 12)
    assert metadata.contents() == contents
    assert metadata.files() == contents.files() == snapshot.files()
    assert decode_metadata(encode_metadata(metadata), "name") == metadata
