"""Savepoints in which operators have other uids. Driver only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.metadata import OperatorMetadata, Origin
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.savepoint import write_savepoint


def rename_uid(path: str, uids: Mapping[str, str], directory: str) -> Savepoint:
    """Write a savepoint in which operators of a checkpoint or savepoint have other uids."""
    source = RestoreSource(str(path))
    stored = [operator.uid for operator in source.metadata.operators]
    unknown = sorted(set(uids) - set(stored))
    if unknown:
        raise RestoreError(
            f"{source.path} has no operator {', '.join(map(repr, unknown))}; its operators are "
            f"{', '.join(map(repr, stored))}: correct the old uid"
        )
    renamed = [uids.get(uid, uid) for uid in stored]
    twice = sorted({uid for uid in renamed if renamed.count(uid) > 1})
    if twice or not all(renamed):
        raise RestoreError(
            f"{source.path}: operators {', '.join(map(repr, stored))} cannot become "
            f"{', '.join(map(repr, renamed))}: give each operator its own uid"
        )
    operators = tuple(_renamed(each, uids) for each in source.metadata.operators)
    parent = Origin(
        path=source.path,
        kind=source.metadata.kind,
        checkpoint_id=source.metadata.checkpoint_id,
        query_id=source.metadata.query_id,
        epoch=source.metadata.epoch,
        operators=tuple(renamed),
        sha256=source.sha256,
    )
    contents = source.metadata.contents()
    contents = msgspec.structs.replace(contents, operators=operators, parent=parent)
    # ``NATIVE`` copies files of any format as they are.
    return write_savepoint(
        contents,
        source.storage,
        str(directory),
        SavepointFormat.NATIVE,
        triggered_at_ms=source.metadata.triggered_at_ms,
    )


def _renamed(operator: OperatorMetadata, uids: Mapping[str, str]) -> OperatorMetadata:
    uid = uids.get(operator.uid, operator.uid)
    handles = tuple(msgspec.structs.replace(handle, uid=uid) for handle in operator.handles)
    return msgspec.structs.replace(operator, uid=uid, handles=handles)
