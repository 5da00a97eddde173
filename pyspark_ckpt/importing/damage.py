"""Whether the state of a stopped query is whole, and what is said if Spark cannot read it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

from pyspark_ckpt.errors import CkptError, CorruptFileError
from pyspark_ckpt.spark.damage import said
from pyspark_ckpt.spark.jobs import JOB_ERRORS
from pyspark_ckpt.spark.state_files import missing_partitions
from pyspark_ckpt.storage.base import Storage

_ADVICE = (
    "the location was only read. Bring back what is missing, for example from a backup or an older "
    "version of the bucket, or import a complete copy of the location"
)
_SPARKS_READER = re.compile(
    r"\[(?:CANNOT_LOAD_STATE_STORE|STDS_)|\.execution\.(?:streaming|datasources\.v2)\.state\."
)
"""Names that Spark's errors have if its reader of state failed."""


def check_partitions(storage: Storage, where: str, operator_id: int, partitions: int) -> None:
    """Check that an operator has the directory of each partition of its state."""
    missing = missing_partitions(storage, operator_id, partitions)
    if missing:
        raise CorruptFileError(
            f"{where}: the state of partition {', '.join(map(str, missing))} of {partitions} is "
            f"missing: there is no {storage.url_of(f'state/{operator_id}/{missing[0]}')}: {_ADVICE}"
        )


def check_operators(path: str, ids: set[int], known: Mapping[str, Collection[int]]) -> None:
    """Check that no operator is missing among the ids, which Spark gives from 0 on."""
    missing = sorted({*range(max(ids, default=0)), *chain(*known.values())} - ids)
    if not missing:
        return
    names = ", ".join(what for what, each in known.items() if not ids.issuperset(each))
    raise CorruptFileError(
        f"{path}: the state of operator {_listed(missing)} is missing, Spark finds only that of "
        f"{_listed(sorted(ids)) or 'none'}{names and f' (more have {names})'}: {_ADVICE}"
    )


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


@contextmanager
def reading(where: str, what: str = "its state") -> Iterator[None]:
    """Say of what Spark cannot read where it is, and what to do.

    Spark begins some reads only when their rows are asked for, so the context has to last.
    """
    try:
        yield
    except CkptError:  # some are PySpark's errors too
        raise
    except JOB_ERRORS as exc:
        raise unreadable(where, exc, what) from exc


def unreadable(where: str, error: Exception, what: str = "its state") -> CorruptFileError:
    """Return the error of what Spark cannot read."""
    return CorruptFileError(f"{where}: Spark cannot read {what}: {said(error)}: {_ADVICE}")


def failed_read(places: Mapping[str, str], uid: str, error: Exception) -> CkptError | None:
    """Return the error of a job that writes an operator and failed because of what it reads.

    It returns ``None`` if the job failed for another reason than damaged state. `places` has where
    the state of each operator comes from, by uid.
    """
    if _SPARKS_READER.search(str(error)) is None:
        return None
    return unreadable(f"{places[uid]}, as operator {uid!r}", error)
