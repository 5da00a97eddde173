"""Only what the query has now is judged: another program may have other operators and states."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ckpt.console.data.states import growth_of, slow_keys_of
from pyspark_ckpt.history.run_log import (
    CheckpointRecord,
    OperatorRecord,
    SlowKeyRecord,
    StateRecord,
)


def operator(uid: str, slow: Sequence[str] = (), **sizes: int) -> OperatorRecord:
    states = tuple(
        StateRecord(name=name, keys=1, entries=1, size_bytes=size) for name, size in sizes.items()
    )
    keys = tuple(SlowKeyRecord(key=key, subtask=0, ms=9, share=0.5) for key in slow)
    return OperatorRecord(uid=uid, states=states or None, slow_keys=keys)


def record(epoch: int, *operators: OperatorRecord) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=epoch, epoch=epoch, triggered_at_ms=epoch, duration_ms=1, size_bytes=1,
        operators=operators,
    )  # fmt: skip


def grown(epochs: range, *others: OperatorRecord) -> list[CheckpointRecord]:
    """Return records in which the state `seen` of the operator `visits` grows."""
    return [record(n, operator("visits", seen=1000 * (n + 1)), *others) for n in epochs]


def test_an_operator_that_was_removed_does_not_grow() -> None:
    records = grown(range(20))
    fastest = growth_of(records).fastest
    assert fastest is not None
    assert fastest.name == "visits / seen"
    records += [record(n, operator("count", count=3000)) for n in range(20, 40)]
    growth = growth_of(records)
    assert growth.fastest is None
    assert [each.name for each in growth.trends] == ["count / count"]


def test_a_state_that_was_renamed_does_not_grow() -> None:
    records = [
        *grown(range(20)), *(record(n, operator("visits", seen_by=5)) for n in range(20, 30)),
    ]  # fmt: skip
    assert [each.name for each in growth_of(records).trends] == ["visits / seen_by"]


def test_a_state_that_is_not_counted_yet_is_judged_by_the_counts_before() -> None:
    """As in the first epochs after a start, and next to an operator that is counted."""
    records = grown(range(20), operator("count", count=5))
    records += [record(20, operator("visits"), operator("count", count=5)), record(21)]
    growth = growth_of(records)
    assert {each.name for each in growth.trends} == {"visits / seen", "count / count"}
    assert growth.fastest is not None


def test_keys_of_an_operator_that_was_removed_take_no_time() -> None:
    before = record(1, operator("visits", slow=["old"]), operator("count", slow=["ada"]))
    after = record(2, operator("count"))
    assert [each.record.key for each in slow_keys_of([before])] == ["old", "ada"]
    assert [each.record.key for each in slow_keys_of([before, after])] == ["ada"]
    assert slow_keys_of([record(1, operator("visits", slow=["old"])), after]) == ()
