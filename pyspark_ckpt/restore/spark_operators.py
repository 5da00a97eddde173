"""What becomes of the state of Spark's own stateful operators in a restore."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.metadata import NativeOperatorMetadata
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_file_check import checked_content, is_checked
from pyspark_ckpt.spark.operators import SparkOperator, StatefulOperators
from pyspark_ckpt.spark.session import STATE_STORE_PROVIDER, STATE_STORE_PROVIDERS
from pyspark_ckpt.spark.state_files import STATE, is_operator_metadata, with_operator_id
from pyspark_ckpt.storage.open import LocalStorage

_STORE = "spark.sql.streaming.stateStore."
_CODEC = f"{_STORE}compression.codec"
_FORMAT = (
    STATE_STORE_PROVIDER,
    _CODEC,
    f"{_STORE}encodingFormat",
    f"{_STORE}rocksdb.formatVersion",
    f"{_STORE}rocksdb.mergeOperatorVersion",
    f"{_STORE}rowChecksum.enabled",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
)
"""What all state stores of a query have in common; Spark keeps it with the query's epochs."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9]{0,32}")


@dataclass(frozen=True, slots=True)
class NativeChange:
    """What becomes of one of Spark's operators; refused if there is an error.

    Of several of one name the second is called ``<name> 2``.
    """

    name: str
    is_restored: bool
    why: str
    error: RestoreError | None = None


def native_changes(
    source: RestoreSource, wanted: StatefulOperators, *, allow_non_restored_state: bool
) -> Iterator[NativeChange]:
    """Tell what becomes of each of Spark's own operators; starts nothing.

    They have no uid: those of one name are matched by their order from the sink.

    Parameters
    ----------
    source
        The checkpoint or savepoint.
    wanted
        The query's operators.
    allow_non_restored_state
        Whether those that the query does not have are left behind rather than refused.
    """
    stored = _count(source.metadata.native)
    in_query = _count(tuple(wanted.spark_operators.values()))
    for name in sorted(stored | in_query):
        before, now = stored[name], in_query[name]
        if before == now:
            error = _unfit(source, wanted, name)
            why = "nothing changes" if error is None else str(error)
            for each in _numbered(name, now):
                yield NativeChange(each, is_restored=True, why=why, error=error)
        elif now == 0 and allow_non_restored_state:
            why = "the query has no operator of this name"
            for each in _numbered(name, before):
                yield NativeChange(each, is_restored=False, why=why)
        else:
            refusal = RestoreError(
                f"{source.path} has the state of {before} operators {name} of Spark's own, the "
                f"query has {now}: such operators have no uid, and none can start empty beside "
                "restored state; give the query those that it had, or leave all of that name "
                "behind with restoreFrom(..., allowNonRestoredState=True)"
            )
            yield NativeChange(name, is_restored=False, why=str(refusal), error=refusal)


def store_conf(source: RestoreSource) -> dict[str, str]:
    """Return the conf under which further state stores fit those of Spark's own operators."""
    conf = source.plain_conf
    return {key: conf[key] for key in _FORMAT if key in conf}


def place_native_state(
    source: RestoreSource, location: LocalStorage, wanted: StatefulOperators
) -> None:
    """Copy the state of Spark's own operators into a location that is being filled; durable.

    Parameters
    ----------
    source
        The checkpoint or savepoint; :func:`native_changes` has nothing against it.
    location
        The ``checkpointLocation``.
    wanted
        The query's operators.
    """
    stored = sorted(source.metadata.native, key=lambda each: each.operator_id)
    for operator_id, operator in wanted.spark_operators.items():
        found = next(each for each in stored if each.name == operator.name)
        stored.remove(found)
        for file in found.files:
            path = f"{STATE}/{operator_id}/{file.name}"
            if is_operator_metadata(file.name):
                with source.storage.open_verified(file.file) as opened:
                    content = opened.read()
                location.write(path, [with_operator_id(content, location, operator_id)])
            elif is_checked(file.name):
                name = source.storage.url_of(file.file.path)
                with source.storage.open_verified(file.file) as opened:
                    content = checked_content(file.name, opened.read(), name)
                location.write(path, [content])
            else:
                location.copy_in(source.storage, file.file, path)


def _count(operators: Sequence[SparkOperator | NativeOperatorMetadata]) -> Counter[str]:
    return Counter(operator.name for operator in operators)


def _numbered(name: str, count: int) -> list[str]:
    return [name, *(f"{name} {number}" for number in range(2, count + 1))]


def _unfit(source: RestoreSource, wanted: StatefulOperators, name: str) -> RestoreError | None:
    """Return why the state of an operator of Spark's own cannot be used by the query, if so."""
    conf = source.spark_conf
    provider, codec = conf.get(STATE_STORE_PROVIDER, ""), conf.get(_CODEC, "")
    # Either may be the name of a class, which Spark would load.
    if provider not in STATE_STORE_PROVIDERS or not _PLAIN_NAME.fullmatch(codec):
        return RestoreError(
            f"{source.path}: the state of Spark's own {name} is of the state store "
            f"{provider[:200]!r} with the codec {codec[:200]!r}, which cannot be restored; leave "
            "it behind with restoreFrom(..., allowNonRestoredState=True) and a query without them"
        )
    before = conf.get("spark.sql.shuffle.partitions")
    now = {str(operator.parallelism) for operator in wanted.descriptors}
    if now != {before}:
        return RestoreError(
            f"{source.path}: the state of Spark's own {name} has {before} partitions, the query "
            f"has {', '.join(sorted(now))}: set spark.sql.shuffle.partitions to {before} before "
            "building the query; only operators of this library can be rescaled"
        )
    return None
