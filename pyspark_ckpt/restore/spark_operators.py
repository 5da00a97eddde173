"""Decides what a restore does with the state of Spark's own operators, and which files are copied.

Spark's operators have no uid. Operators of one name are matched by their order from the sink.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pyspark_ckpt.errors import RestoreError
from pyspark_ckpt.formats.metadata import SparkOperatorMetadata
from pyspark_ckpt.operator.schema.verdict import StateOutcome
from pyspark_ckpt.restore.planned import (
    UNCHANGED,
    WHOLE_OPERATOR,
    Action,
    PlannedSparkOperator,
    PlannedSparkOperators,
    SparkStateFile,
    planned_state,
)
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.settings import SHUFFLE_PARTITIONS
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.spark.session import STATE_STORE_PROVIDER, STATE_STORE_PROVIDERS

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


def plan_spark_operators(
    source: RestoreSource, wanted: StatefulOperators, *, allow_non_restored_state: bool
) -> PlannedSparkOperators:
    """Decide what becomes of each of Spark's own operators."""
    stored = sorted(source.metadata.spark_operators, key=lambda each: each.operator_id)
    names = Counter(operator.name for operator in stored)
    names |= Counter(operator.name for operator in wanted.spark_operators.values())
    planned = tuple(
        operator
        for name in sorted(names)
        for operator in _planned(
            source,
            wanted,
            name,
            [each for each in stored if each.name == name],
            may_be_dropped=allow_non_restored_state,
        )
    )
    if not wanted.spark_operators:
        return PlannedSparkOperators(operators=planned)
    conf = source.plain_conf
    return PlannedSparkOperators(
        operators=planned,
        store_conf={key: conf[key] for key in _FORMAT if key in conf},
        epoch_conf=conf,
    )


def _planned(
    source: RestoreSource,
    wanted: StatefulOperators,
    name: str,
    stored: Sequence[SparkOperatorMetadata],
    *,
    may_be_dropped: bool,
) -> Iterator[PlannedSparkOperator]:
    """Yield what becomes of the operators of one name."""
    ids = [
        operator_id
        for operator_id, operator in wanted.spark_operators.items()
        if operator.name == name
    ]
    if len(stored) == len(ids):
        error = _unfit(source, wanted, name)
        for label, operator_id, found in zip(_labels(name, len(ids)), ids, stored, strict=True):
            yield _copied(label, operator_id, found, error)
    elif not ids and may_be_dropped:
        why = "the query has no operator of this name"
        for label in _labels(name, len(stored)):
            yield _without_files(label, Action.DROP, StateOutcome.DROPPED, why)
    else:
        refusal = RestoreError(
            f"{source.path} has the state of {len(stored)} operators {name} (Spark's own), but "
            f"the query has {len(ids)}. Such operators have no uid, so they are restored all or "
            "not at all: give the query as many as it had, or none of them and "
            "restoreFrom(..., allowNonRestoredState=True)"
        )
        yield _without_files(name, Action.REFUSE, StateOutcome.REFUSED, str(refusal), refusal)


def _copied(
    label: str, operator_id: int, stored: SparkOperatorMetadata, error: RestoreError | None
) -> PlannedSparkOperator:
    outcome = StateOutcome.RESTORED if error is None else StateOutcome.REFUSED
    why = UNCHANGED if error is None else str(error)
    return PlannedSparkOperator(
        name=label,
        action=Action.COPY,
        files=tuple(SparkStateFile(operator_id, file.name, file.file) for file in stored.files),
        rows=(planned_state(f"Spark's {label}", WHOLE_OPERATOR, outcome, why),),
        errors=() if error is None else (error,),
    )


def _without_files(
    label: str, action: Action, outcome: StateOutcome, why: str, *errors: RestoreError
) -> PlannedSparkOperator:
    row = planned_state(f"Spark's {label}", WHOLE_OPERATOR, outcome, why)
    return PlannedSparkOperator(name=label, action=action, rows=(row,), errors=errors)


def _labels(name: str, count: int) -> list[str]:
    """Return what operators of one name are called in the plan."""
    return [name, *(f"{name} {number}" for number in range(2, count + 1))]


def _unfit(source: RestoreSource, wanted: StatefulOperators, name: str) -> RestoreError | None:
    """Return why the query cannot use the state of a Spark operator, ``None`` if it can."""
    conf = source.spark_conf
    provider, codec = conf.get(STATE_STORE_PROVIDER, ""), conf.get(_CODEC, "")
    # Both may be names of classes, which Spark would load.
    if provider not in STATE_STORE_PROVIDERS or not _PLAIN_NAME.fullmatch(codec):
        return RestoreError(
            f"{source.path}: the state of Spark's own {name} is of the state store "
            f"{provider[:200]!r} with the codec {codec[:200]!r}, which cannot be restored; drop "
            "it with restoreFrom(..., allowNonRestoredState=True) and a query without them"
        )
    before = conf.get(SHUFFLE_PARTITIONS)
    now = {str(operator.parallelism) for operator in wanted.descriptors}
    if now != {before}:
        return RestoreError(
            f"{source.path}: the state of Spark's own {name} has {before} partitions, the query "
            f"has {', '.join(sorted(now))}: set spark.sql.shuffle.partitions to {before} before "
            "building the query; only operators of this library can be rescaled"
        )
    return None
