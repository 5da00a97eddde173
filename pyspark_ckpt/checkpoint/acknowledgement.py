"""Acknowledgements: what each subtask contributes to a checkpoint.

No message is sent for them: they are made of the handles that are read back from Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from pyspark_ckpt.formats.metadata import CheckpointMetadata


class Reception(Enum):
    """What became of an acknowledgement; only an accepted one has an effect."""

    ACCEPTED = auto()
    REPEATED = auto()
    LATE = auto()
    UNKNOWN = auto()
    FOREIGN = auto()


@dataclass(frozen=True, order=True, slots=True)
class Subtask:
    """One subtask of a query."""

    uid: str
    number: int


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A subtask's part of a checkpoint.

    `files` are the paths of what its handle refers to; a subtask that never had a row has no
    handle and no files.
    """

    checkpoint_id: int
    query_id: str
    subtask: Subtask
    files: frozenset[str] = frozenset()


def acknowledgements_of(checkpoint_id: int, metadata: CheckpointMetadata) -> list[Acknowledgement]:
    """Return the acknowledgements that a gathered checkpoint is made of, one for each subtask."""
    acknowledgements = []
    for operator in metadata.operators:
        files = {
            handle.subtask: frozenset(reference.path for reference in handle.files())
            for handle in operator.handles
        }
        acknowledgements += [
            Acknowledgement(
                checkpoint_id,
                metadata.query_id,
                Subtask(operator.uid, number),
                files.get(number, frozenset()),
            )
            for number in range(operator.parallelism)
        ]
    return acknowledgements
