"""A query without Spark, on any storage: it commits epochs, and gathers them as a driver does.

This module writes what Spark would write: the logs of a ``checkpointLocation``, the log of a file
source, and the state of an operator of Spark's own. The handles, which Spark's state store would
have, are in memory. The library's own code reads, copies, checks and cleans.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pyspark_ckpt.checkpoint.contents import gather
from pyspark_ckpt.checkpoint.handles import checked_handles
from pyspark_ckpt.checkpoint.machine import Subtask
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.query_runner import is_present
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.formats.handle import BaseFile, BaseSnapshot, Handle, Segment, following
from pyspark_ckpt.formats.layout import base_path, segment_path
from pyspark_ckpt.formats.metadata import EpochContents
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import SparkOperator, StatefulOperators
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.base import CompletedCheckpointStore

QUERY_ID = "0123456789"
NUM_RETAINED = 2
_FIELD = '{"name":"user","type":"string","nullable":true,"metadata":{}}'
KEY_SCHEMA = f'{{"type":"struct","fields":[{_FIELD}]}}'
COUNT = OperatorDescriptor(uid="count", parallelism=1, max_parallelism=128, key_schema=KEY_SCHEMA)
RARE = OperatorDescriptor(uid="rare", parallelism=1, max_parallelism=128, key_schema=KEY_SCHEMA)
OWN_OPERATORS = StatefulOperators((COUNT, RARE))
OPERATORS = StatefulOperators((COUNT, RARE, SparkOperator("dedupe")))
_SUBTASKS = frozenset({Subtask("count", 0), Subtask("rare", 0)})
_NATIVE_ID = 2


class SparkFiles:
    """Spark's files in a ``checkpointLocation``: its logs, and the log of a file source.

    Parameters
    ----------
    location
        The ``checkpointLocation``.
    query_id
        The id that Spark gave the query.
    """

    def __init__(self, location: Path, query_id: str = QUERY_ID) -> None:
        self.location = location
        self.put("metadata", json.dumps({"id": query_id}))

    def commit(self, epoch: int) -> None:
        """Write what Spark writes in an epoch."""
        conf = {"spark.sql.shuffle.partitions": "1"}
        times = {"batchWatermarkMs": 3, "batchTimestampMs": 1}
        offset = json.dumps({"logOffset": epoch}, separators=(",", ":"))
        read = json.dumps({"path": f"file:///input/{epoch}", "timestamp": 1, "batchId": epoch})
        self.put(f"offsets/{epoch}", f"v1\n{json.dumps({**times, 'conf': conf})}\n{offset}")
        self.put(f"sources/0/{epoch}", f"v1\n{read}")
        self.put(f"commits/{epoch}", 'v1\n{"nextBatchWatermarkMs":3}')

    def put(self, path: str, text: str) -> None:
        """Write one of the files."""
        file = self.location / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


class Epochs:
    """A query of two operators, one of which has rows in its first epoch only.

    The other one writes a segment in every epoch and a base snapshot in every third.

    Parameters
    ----------
    storage
        Where the tasks write.
    location
        The ``checkpointLocation`` with Spark's files; the default one is deleted with this object.
    operators
        Without an operator of Spark's own, the query can be restored without Spark.
    """

    def __init__(
        self,
        storage: Storage,
        location: Path | None = None,
        operators: StatefulOperators = OPERATORS,
    ) -> None:
        self.storage = storage
        self._operators = operators
        self._own = None if location is not None else tempfile.TemporaryDirectory()
        self.location = Path(self._own.name) if location is None else location
        self.handles: list[Handle] = []
        self.rare: Handle | None = None
        self._spark = SparkFiles(self.location)
        name = {"operatorInfo": {"operatorId": _NATIVE_ID, "operatorName": "dedupe"}}
        stored = json.dumps({**name, "stateStoreInfo": []})
        if operators is OPERATORS:
            self._spark.put(f"state/{_NATIVE_ID}/_metadata/metadata", f"v1\n{stored}")

    def continued_on(self, storage: Storage, location: Path) -> Epochs:
        """Return the same query where its files are now."""
        other = Epochs(storage, location, self._operators)
        other.handles, other.rare = self.handles, self.rare
        return other

    def commit(self) -> int:
        """Run an epoch; its files are durable."""
        epoch = len(self.handles)
        last = self.handles[-1] if self.handles else None
        base = None if last is None else last.base
        segments = () if last is None else last.segments
        if epoch % 3 == 0:
            file = self.storage.write(base_path("count", 0, epoch), [b"base", str(epoch).encode()])
            base = BaseSnapshot(f"{epoch}-b", epoch, 1, (BaseFile("state.chg", file),))
            segments = ()
        segments = (*segments, self._segment("count", epoch))
        self.commit_handle(following(_handle("count", epoch, base, segments), last))
        return epoch

    def commit_handle(self, handle: Handle) -> None:
        """Commit an epoch that another process has run for the busy operator."""
        epoch = len(self.handles)
        assert handle.epoch == epoch
        if self.rare is None:
            self.rare = _handle("rare", epoch, None, (self._segment("rare", epoch),))
        if self._operators is OPERATORS:
            self._spark.put(f"state/{_NATIVE_ID}/0/{epoch + 1}.delta", f"state of {epoch}")
        self._spark.commit(epoch)
        self.handles.append(handle)

    def committed_epoch(self) -> int | None:
        return len(self.handles) - 1 if self.handles else None

    def runner(self, storage: Storage | None = None, **changed: Any) -> CheckpointRunner:
        """Start a driver, which may see the files through its own storage."""
        storage = storage or self.storage
        settings = {
            "num_retained": NUM_RETAINED,
            "interval_ms": 3_600_000,
            "tolerable_failed_checkpoints": 1000,
            **changed,
        }
        files = self.files(storage)
        return CheckpointRunner(
            QUERY_ID,
            _SUBTASKS,
            storage,
            Settings(**settings),
            lambda epoch: self.snapshot(epoch, files),
            renew_copies=files.copy_names.renew,
            is_present=partial(is_present, files.spark_log),
        )

    def files(self, storage: Storage) -> QueryFiles:
        """Return the query's files as one start of its driver knows them."""
        return QueryFiles(
            checkpoint_location=str(self.location),
            spark_log=SparkLog(LocalStorage(self.location)),
            storage=storage,
            query_id=QUERY_ID,
            query_name=None,
            backend_type="heap",
            operators=self._operators,
            source_ids=(0,),
        )

    def snapshot(self, epoch: int, files: QueryFiles) -> EpochContents:
        """Gather an epoch as a driver does."""

        def handles_of(operator_id: int) -> tuple[Handle, ...]:
            assert self.rare is not None
            held = [self.handles[epoch]] if operator_id == 0 else [self.rare]
            return checked_handles(files, epoch, operator_id, held)

        return gather(files, epoch, "4.3.0", handles_of)

    def _segment(self, uid: str, epoch: int) -> Segment:
        path = segment_path(uid, 0, epoch)
        file = self.storage.write(path, [b"segment", str(epoch).encode()])
        return Segment(f"{epoch}-s", epoch, 1, file.size_bytes, file=file)


def _handle(
    uid: str, epoch: int, base: BaseSnapshot | None, segments: tuple[Segment, ...]
) -> Handle:
    return Handle(
        query_id=QUERY_ID, uid=uid, subtask=0, parallelism=1, max_parallelism=128, epoch=epoch,
        key_schema=KEY_SCHEMA, base=base, segments=segments,
    )  # fmt: skip


def restored_epoch(store: CompletedCheckpointStore, storage: Storage, checkpoint_id: int) -> int:
    """Read all of a checkpoint, each file against its digest; return its epoch."""
    metadata = store.read(checkpoint_id)
    assert metadata.checkpoint_id == checkpoint_id
    for reference in metadata.files():
        with storage.open_verified(reference) as file:
            assert len(file.read()) == reference.size_bytes
    return metadata.epoch


def files_of(storage: Storage, directory: str | None = None) -> set[str]:
    """Return the paths of all files of a storage."""
    found = set()
    for name in storage.list(directory):
        path = name if directory is None else f"{directory}/{name}"
        if storage.size_bytes(path) is None:
            found |= files_of(storage, path)
        else:
            found.add(path)
    return found
