"""What the metrics say of operators, from the handles of a checkpoint."""

from __future__ import annotations

import msgspec
import pytest

from pyspark_ckpt.formats.counters import EpochMetrics
from pyspark_ckpt.formats.handle import Handle, Segment, StateCount, StateCounts
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.metrics.values import operator_values

EPOCH = 7


def handle(subtask: int, epoch: int, **metrics: int) -> Handle:
    return Handle(
        query_id="q", uid="op", subtask=subtask, parallelism=2, max_parallelism=128, epoch=epoch,
        key_schema="k string", metrics=EpochMetrics(**metrics),
    )  # fmt: skip


def checkpoint(*handles: Handle) -> CheckpointMetadata:
    operator = OperatorMetadata(
        operator_id=0, uid="op", parallelism=2, max_parallelism=128, key_schema="k string",
        backend="heap", handles=handles,
    )  # fmt: skip
    return CheckpointMetadata(
        checkpoint_id=1, kind=CheckpointKind.CHECKPOINT, root="..", epoch=EPOCH, query_id="q",
        query_name=None, parent=None, spark_version="4.3.0", library_version="0.1.0",
        triggered_at_ms=1, completed_at_ms=2, watermark_ms=0, offsets_entry="", commits_entry="",
        source_logs=(), operators=(operator,),
    )  # fmt: skip


def values(metadata: CheckpointMetadata) -> dict[str, list[float]]:
    """Return minimum, maximum and sum of each metric over the subtasks."""
    found: dict[str, list[float]] = {}
    for name, value, labels in operator_values(metadata):
        assert labels[0] == "op"
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("epoch", [EPOCH, EPOCH - 1])
def test_quarantined_keys_stay_while_a_subtask_is_not_called(epoch: int) -> None:
    """What it did is of its last epoch, what it keeps is of now."""
    idle = handle(0, epoch, rows=10, quarantined_keys=2, quarantined_rows=5)
    found = values(checkpoint(idle, handle(1, EPOCH, rows=4)))
    assert found["operator_quarantined_keys"] == [0, 2, 2]
    assert found["operator_quarantined_rows"] == [0, 5, 5]
    assert found["operator_input_rows"] == ([4, 10, 14] if epoch == EPOCH else [0, 4, 4])


def test_a_subtask_without_metrics_counts_as_zero() -> None:
    unknown = msgspec.structs.replace(handle(0, EPOCH), metrics=None)
    found = values(checkpoint(unknown, handle(1, EPOCH, rows=4, quarantined_keys=1)))
    assert found["operator_quarantined_keys"] == [0, 1, 1]
    assert found["operator_input_rows"] == [0, 4, 4]


def test_subtasks_without_a_row_count_as_zero() -> None:
    """They have no handle, and the smallest subtask is one of them."""
    counts = StateCounts(
        epoch=EPOCH, counted_at_ms=1, took_us=1, groups=1, of_groups=2, timers=3,
        states=(StateCount(name="n", keys=4, entries=5, size_bytes=6),),
    )  # fmt: skip
    busy = msgspec.structs.replace(
        handle(1, EPOCH, rows=4, quarantined_keys=1), counts=counts,
        segments=(Segment("v", 1, 1, 9, inline=b"123456789"),),
    )  # fmt: skip
    found = values(checkpoint(busy))
    assert found["operator_input_rows"] == [0, 4, 4]
    assert found["operator_quarantined_keys"] == [0, 1, 1]
    assert found["operator_changelog"][0] == 0
    assert found["operator_changelog"][1] > 0
    assert found["operator_timers"] == [0, 6, 6]
    assert found["state_size"] == [0, 12, 12]
    of_all = values(checkpoint(handle(0, EPOCH, rows=1), busy))
    assert of_all["operator_input_rows"] == [1, 4, 5]
    assert "state_size" not in of_all, "a subtask has not counted yet"


def test_figures_of_rocksdb_are_of_subtasks_with_a_database() -> None:
    metrics = EpochMetrics(backend={"block-cache-capacity": 7})
    found = values(checkpoint(msgspec.structs.replace(handle(1, EPOCH), metrics=metrics)))
    assert found["rocksdb_block_cache_capacity"] == [7, 7, 7]
