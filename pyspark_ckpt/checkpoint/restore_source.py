"""What a query is restored from: a checkpoint or savepoint, checked against the query."""

from __future__ import annotations

from pyspark_ckpt.checkpoint.state_check import check_states
from pyspark_ckpt.errors import (
    CorruptFileError,
    NotBuiltYetError,
    RestoreError,
    UnsafePathError,
)
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata, OperatorMetadata, read_metadata
from pyspark_ckpt.on_disk.storage import Storage, open_storage
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.operator.state_catalog import schema_text


class RestoreSource:
    """A checkpoint or savepoint to start from, read and checked but for its data files.

    Parameters
    ----------
    path
        A ``savepoint-...`` or ``chk-...`` directory.

    Raises
    ------
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If there is none, or it cannot be trusted.
    """

    def __init__(self, path: str) -> None:
        directory = open_storage(path)
        self.path = directory.url
        self.metadata: CheckpointMetadata = read_metadata(directory)
        self.storage = self._root(directory)
        for operator in self.metadata.operators:
            self._check_handles(operator)
        for reference in self.metadata.files():
            self.storage.verify_size(reference)

    def check(self, operators: tuple[OperatorDescriptor, ...]) -> None:
        """Check that a query with these operators can start from here.

        Raises
        ------
        RestoreError
            If uid, key schema or max parallelism differ.
        IncompatibleStateError
            If a state's kind or schema differs.
        NotBuiltYetError
            If the parallelism differs.
        """
        stored = {operator.uid: operator for operator in self.metadata.operators}
        wanted = {operator.uid: operator for operator in operators}
        if set(stored) != set(wanted):
            raise RestoreError(
                f"{self.path} holds the operators {sorted(stored)}, the query has "
                f"{sorted(wanted)}: give the query's operator the uid that its state has"
            )
        for uid, operator in wanted.items():
            self._check_operator(stored[uid], operator)

    def _root(self, directory: Storage) -> Storage:
        """Return the directory that the files' paths start from."""
        root = self.metadata.root
        if root == ".":
            return directory
        if root == "..":
            return directory.parent()
        raise UnsafePathError(
            f"{self.path}: its files start from {root!r}, which is neither its own directory nor "
            "the one above; do not use it"
        )

    def _check_handles(self, operator: OperatorMetadata) -> None:
        subtasks = [handle.subtask for handle in operator.handles]
        if (
            len(set(subtasks)) != len(subtasks)
            or any(not 0 <= subtask < operator.parallelism for subtask in subtasks)
            or any(handle.uid != operator.uid for handle in operator.handles)
        ):
            raise CorruptFileError(
                f"{self.path}: operator {operator.uid!r} has handles of other subtasks or "
                "operators; restore from another checkpoint or savepoint"
            )

    def _check_operator(self, stored: OperatorMetadata, wanted: OperatorDescriptor) -> None:
        where = f"{self.path}, operator {wanted.uid!r}"
        keys = schema_text(stored.key_schema), schema_text(wanted.key_schema)
        if keys[0] != keys[1]:
            raise RestoreError(
                f"{where}: the state is keyed by {keys[0]}, the query by {keys[1]}: key_by the "
                "same columns"
            )
        if stored.max_parallelism != wanted.max_parallelism:
            raise RestoreError(
                f"{where}: the state has maxParallelism {stored.max_parallelism}, the query "
                f"{wanted.max_parallelism}: pass maxParallelism={stored.max_parallelism} to key_by"
            )
        if stored.parallelism != wanted.parallelism:
            raise NotBuiltYetError(
                f"{where}: restoring at another parallelism is not built yet; set "
                f"spark.sql.shuffle.partitions to {stored.parallelism} (it is "
                f"{wanted.parallelism}) before building the query"
            )
        check_states(wanted, stored.handles)
