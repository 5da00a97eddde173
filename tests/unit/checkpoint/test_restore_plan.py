"""The plan of a restore names every operator and state, and refuses what cannot be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.checkpoint.restore_plan import RestorePlan, plan_of
from pyspark_ckpt.checkpoint.restore_source import RestoreSource
from pyspark_ckpt.checkpoint.savepoint import SavepointFormat, write_savepoint
from pyspark_ckpt.errors import IncompatibleStateError, PlanError, RestoreError
from pyspark_ckpt.on_disk.handle import StateDescriptor
from pyspark_ckpt.on_disk.metadata import CheckpointMetadata
from pyspark_ckpt.on_disk.storage import LocalStorage
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OperatorDescriptor


def schema(**fields: T.DataType) -> str:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()]).json()


KEY = schema(k=T.StringType())
N, WIDE, TEXT = schema(n=T.IntegerType()), schema(n=T.LongType()), schema(s=T.StringType())


def value(name: str, value_schema: str = N) -> StateDescriptor:
    return StateDescriptor(name, "value", value_schema)


STATES = (value("same"), value("wider"), value("left"))


@pytest.fixture
def source(storage: LocalStorage, snapshot: CheckpointMetadata, tmp_path: Path) -> RestoreSource:
    """Operators `count` and `old`; the second has no handles."""
    (operator,) = snapshot.operators
    handles = tuple(
        msgspec.structs.replace(handle, key_schema=KEY, states=STATES)
        for handle in operator.handles
    )
    count = msgspec.structs.replace(operator, key_schema=KEY, handles=handles)
    old = msgspec.structs.replace(count, uid="old", operator_id=1, handles=())
    changed = msgspec.structs.replace(snapshot, operators=(count, old))
    return RestoreSource(
        write_savepoint(changed, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE).path
    )


def operator(uid: str = "count", *states: StateDescriptor, **changes: object) -> OperatorDescriptor:
    fields = {"parallelism": 4, "max_parallelism": 128, "key_schema": KEY, **changes}
    return OperatorDescriptor(uid=uid, states=states or STATES, **fields)


def plan(source: RestoreSource, *operators: OperatorDescriptor, allow: bool = False) -> RestorePlan:
    return plan_of(source, operators, allow_non_restored_state=allow, backend_type="rocksdb")


def outcomes(made: RestorePlan) -> dict[tuple[str, str], str]:
    assert len({(row.operator, row.state) for row in made.states}) == len(made.states)
    return {(row.operator, row.state): row.outcome for row in made.states}


def test_every_state_has_its_row(source: RestoreSource) -> None:
    made = plan(
        source,
        operator("count", value("same"), value("wider", WIDE), value("brand new")),
        operator("added"),
        allow=True,
    )
    assert outcomes(made) == {
        ("count", "(operator)"): "restored",
        ("count", "(key)"): "restored",
        ("count", "same"): "restored",
        ("count", "wider"): "migrated",
        ("count", "brand new"): "new",
        ("count", "left"): "restored",
        ("added", "(operator)"): "new",
        ("old", "(operator)"): "dropped",
    }
    assert made.refused == made.errors == ()
    made.check()
    text = str(made)
    for word in ("backend heap -> rocksdb", "can start", "widened", "brand new", source.path):
        assert word in text


def test_an_operator_left_behind_is_refused_unless_allowed(source: RestoreSource) -> None:
    made = plan(source, operator())
    assert [(row.operator, row.state) for row in made.refused] == [("old", "(operator)")]
    assert "refused" in str(made)
    with pytest.raises(RestoreError) as caught:
        made.check()
    for word in ("'old'", "rename_uid", "allowNonRestoredState"):
        assert word in str(caught.value)
    assert "dropped" in outcomes(plan(source, operator(), allow=True)).values()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"key_schema": schema(other=T.LongType())}, RestoreError, ["keyed by", "other:bigint"]),
        ({"states": (value("same", TEXT),)}, IncompatibleStateError, ["'same'", "no field"]),
        (
            {"migrations": {"gone": MigrationDescriptor(value=True, key=False, renamed_from=None)}},
            PlanError,
            ["'gone'"],
        ),
    ],
)
def test_what_cannot_be_restored_is_refused_with_the_reason(
    source: RestoreSource, changes: dict[str, object], error: type[Exception], words: list[str]
) -> None:
    """Scenario 35: what does not fit."""
    wanted = msgspec.structs.replace(operator(), **changes)
    made = plan(source, wanted, allow=True)
    assert made.refused
    with pytest.raises(error) as caught:
        made.check()
    for word in words:
        assert word in str(caught.value)
