"""The operators that an edit begins with: stored ones, and those that a processor declares."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.editing.operator_edit import OperatorEdit
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.descriptor import OperatorDescriptor, code_fingerprint, processor_name
from pyspark_ckpt.operator.plan.declared import declare_states, parse_schema
from pyspark_ckpt.operator.plan.parallelism import parallelism_of
from pyspark_ckpt.operator.rescale.unify import UnifiedStates
from pyspark_ckpt.operator.rows.key_columns import check_new_key
from pyspark_ckpt.operator.rows.key_groups import check_max_parallelism, default_max_parallelism
from pyspark_ckpt.restore.source import RestoreSource

_TIME_MODES = {mode.value.lower(): mode for mode in TimeMode}


def stored_operator(source: RestoreSource, stored: OperatorMetadata) -> OperatorEdit:
    """Return the edit of a stored operator, without changes at first."""
    unified = UnifiedStates(stored.uid, stored.handles)
    descriptor = OperatorDescriptor(
        uid=stored.uid,
        parallelism=stored.parallelism,
        max_parallelism=stored.max_parallelism,
        key_schema=stored.key_schema,
        time_mode=stored.time_mode,
        states=unified.states,
        processor=stored.processor,
        code_sha256=stored.code_sha256,
    )
    return OperatorEdit(
        where=f"{source.path}, operator {stored.uid!r}",
        operator=descriptor,
        states=list(unified.states),
        stored=stored,
        unified=unified,
        source=source.storage.url,
        watermark_ms=source.metadata.watermark_ms,
    )


def declared_operator(
    spark: SparkSession,
    uid: str,
    processor: StatefulProcessor,
    keys: T.StructType | str,
    time_mode: str,
    parallelism: int | None,
    max_parallelism: int | None,
    has_watermark: bool | None,  # noqa: FBT001  # passed on from keyword arguments
) -> OperatorDescriptor:
    """Return the operator of a processor, as ``StateEdit.add_operator`` is given it."""
    mode = _TIME_MODES.get(str(time_mode).lower())
    if mode is None:
        raise PlanError(
            f"operator {uid!r}: time_mode is {time_mode!r}, allowed are None, ProcessingTime "
            "and EventTime"
        )
    watermarked = mode is TimeMode.EVENT_TIME if has_watermark is None else has_watermark
    declared = declare_states(processor, uid, mode, has_watermark=watermarked)
    subtasks = parallelism_of(spark) if parallelism is None else parallelism
    groups = default_max_parallelism(subtasks) if max_parallelism is None else max_parallelism
    return OperatorDescriptor(
        uid=uid,
        parallelism=subtasks,
        max_parallelism=check_max_parallelism(groups, subtasks),
        key_schema=key_columns(keys, uid).json(),
        time_mode=mode,
        states=declared.descriptors,
        processor=processor_name(processor),
        code_sha256=code_fingerprint(processor),
    )


def key_columns(keys: T.StructType | str, uid: str) -> T.StructType:
    """Return key columns as a stream has them, which may be null."""
    schema = keys if isinstance(keys, T.StructType) else parse_schema(keys)
    if not schema.fields:
        raise PlanError(f"operator {uid!r}: give at least one key column")
    for field in schema.fields:
        check_new_key(field)
    return T.StructType([T.StructField(each.name, each.dataType) for each in schema.fields])
