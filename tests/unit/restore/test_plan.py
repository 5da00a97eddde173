"""The plan of a restore names every operator and state, and refuses what is impossible."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import IncompatibleStateError, PlanError, RestoreError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.metadata import (
    CheckpointMetadata,
    SparkOperatorFile,
    SparkOperatorMetadata,
)
from pyspark_ckpt.formats.modes import SavepointFormat, TimeMode
from pyspark_ckpt.operator.descriptor import MigrationDescriptor, OperatorDescriptor
from pyspark_ckpt.restore.plan import RestorePlan, RestoreRequest, plan_of
from pyspark_ckpt.restore.planned import Action, CopiedOperator, MovedOperator
from pyspark_ckpt.restore.seeding import seed, write_query_id
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.spark.plan import SparkOperator, StatefulOperators
from pyspark_ckpt.storage.open import LocalStorage


def schema(**fields: T.DataType) -> str:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()]).json()


KEY = schema(k=T.StringType())
N, WIDE, TEXT = schema(n=T.IntegerType()), schema(n=T.LongType()), schema(s=T.StringType())


def value(name: str, value_schema: str = N) -> StateDescriptor:
    return StateDescriptor(name, "value", value_schema)


OPERATOR_ROW = ("count", "(operator)")
STATES = (value("same"), value("wider"), value("left"))


@pytest.fixture
def source(storage: LocalStorage, snapshot: CheckpointMetadata, tmp_path: Path) -> RestoreSource:
    """Operators `count` and `old`; the second has no handles."""
    return source_of(storage, snapshot, tmp_path, STATES)


def source_of(
    storage: LocalStorage,
    snapshot: CheckpointMetadata,
    tmp_path: Path,
    states: tuple[StateDescriptor, ...],
) -> RestoreSource:
    (operator,) = snapshot.operators
    handles = tuple(
        msgspec.structs.replace(handle, key_schema=KEY, states=states)
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
    wanted = StatefulOperators.of(operators)
    terms = RestoreRequest(source.path, allow_non_restored_state=allow, backend_type="rocksdb")
    return plan_of(source, wanted, terms)


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
        ("count", "wider"): "evolved",
        ("count", "brand new"): "new",
        ("count", "left"): "kept",
        ("added", "(operator)"): "new",
        ("old", "(operator)"): "dropped",
    }
    assert made.refused == made.errors == ()
    made.check()
    text = str(made)
    for word in ("backend heap -> rocksdb", "can start", "widened", "brand new", source.path):
        assert word in text
    for form in (text, made._repr_html_()):
        assert "kept" in form
        assert "deleteIfExists" in form


def test_fields_that_the_program_no_longer_has_are_named(
    storage: LocalStorage, snapshot: CheckpointMetadata, tmp_path: Path
) -> None:
    pair = schema(n=T.IntegerType(), s=T.StringType())
    source = source_of(storage, snapshot, tmp_path, (value("pair", pair), value("same")))
    made = plan(source, operator("count", value("pair"), value("same")), allow=True)
    removed = {row.state: row.removed_fields for row in made.states if row.operator == "count"}
    assert removed == {"(operator)": (), "(key)": (), "pair": ("s",), "same": ()}


def test_an_operator_left_behind_is_refused_unless_allowed(source: RestoreSource) -> None:
    made = plan(source, operator())
    assert [(row.operator, row.state) for row in made.refused] == [("old", "(operator)")]
    assert "refused" in str(made)
    with pytest.raises(RestoreError) as caught:
        made.check()
    for word in ("'old'", "rename_uid", "allowNonRestoredState"):
        assert word in str(caught.value)
    assert "dropped" in outcomes(plan(source, operator(), allow=True)).values()


@pytest.mark.parametrize("parallelism", [4, 2])
def test_the_plan_holds_what_seeding_carries_out(source: RestoreSource, parallelism: int) -> None:
    made = plan(source, operator(parallelism=parallelism), operator("added"), allow=True)
    action = Action.COPY if parallelism == 4 else Action.MOVE
    assert {each.uid: each.action for each in made.operators} == {
        "count": action,
        "added": Action.NEW,
        "old": Action.DROP,
    }
    first, second = made.started
    assert (first.operator_id, second.operator_id) == (0, 1)
    (stored, _) = source.metadata.operators
    if isinstance(first, MovedOperator):
        assert first.stored == stored
        assert [state.name for state in first.states.states] == ["same", "wider", "left"]
    else:
        assert isinstance(first, CopiedOperator)
        assert first.handles == stored.handles
    assert made.sources.offsets == ("-",)
    assert (made.origin.path, made.origin.operators) == (source.path, ("count",))
    refused = plan(source, operator(key_schema=schema(other=T.LongType())), allow=True)
    assert refused.operators[0].action is Action.REFUSE
    assert not refused.started


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


def in_mode(source: RestoreSource, time_mode: str, *timeouts_ms: int | None) -> RestoreSource:
    """Change what is stored of operator `count`: its time mode, and its subtasks' timeouts."""
    first, *others = source.metadata.operators
    handles = tuple(
        msgspec.structs.replace(
            first.handles[0], subtask=subtask, time_mode=TimeMode(time_mode), timeout_ms=timeout_ms
        )
        for subtask, timeout_ms in enumerate(timeouts_ms)
    )
    first = msgspec.structs.replace(first, time_mode=TimeMode(time_mode), handles=handles)
    source.metadata = msgspec.structs.replace(source.metadata, operators=(first, *others))
    return source


MODES = ("None", "ProcessingTime", "EventTime")


@pytest.mark.parametrize("parallelism", [4, 2])
@pytest.mark.parametrize("stored", MODES[1:])
@pytest.mark.parametrize("wanted", MODES)
def test_timers_keep_their_clock(
    source: RestoreSource, stored: str, wanted: str, parallelism: int
) -> None:
    """One subtask of three has a timer; another clock must not read its time."""
    source = in_mode(source, stored, None, 7, None)
    made = plan(source, operator(time_mode=TimeMode(wanted), parallelism=parallelism), allow=True)
    if stored == wanted:
        made.check()
        return
    assert [(row.operator, row.state) for row in made.refused] == [("count", "(operator)")]
    with pytest.raises(RestoreError) as caught:
        made.check()
    for word in (f"timeMode {stored} -> {wanted}", "1 of its subtasks", "drain=True"):
        assert word in str(caught.value)


def test_the_plan_says_that_an_initial_state_is_left_out(source: RestoreSource) -> None:
    made = plan(source, operator(), operator("added", initial_state="first"), allow=True)
    (row,) = [row for row in made.states if row.operator == "added"]
    assert (row.outcome, "without its initialState" in row.why) == ("new", True)


def test_no_location_is_seeded_without_the_state_of_a_refused_operator(
    source: RestoreSource, storage: LocalStorage, tmp_path: Path
) -> None:
    """A rollback does not check the whole plan; its operators are those of the checkpoint."""
    made = plan(in_mode(source, "EventTime", 7), operator(time_mode=TimeMode.NONE), allow=True)
    assert not made.started
    location = LocalStorage(tmp_path / "location")
    before = write_query_id(location), location.list(), storage.list()
    with pytest.raises(RestoreError, match="timeMode EventTime -> None"):
        seed(None, location, storage, before[0], made)
    assert (before[0], location.list(), storage.list()) == before


@pytest.mark.parametrize("stored", MODES)
@pytest.mark.parametrize("wanted", MODES)
def test_without_timers_another_clock_is_shown(
    source: RestoreSource, stored: str, wanted: str
) -> None:
    made = plan(
        in_mode(source, stored, None, None), operator(time_mode=TimeMode(wanted)), allow=True
    )
    made.check()
    (row,) = (each for each in made.states if (each.operator, each.state) == OPERATOR_ROW)
    assert (f"timeMode {stored} -> {wanted}" in row.why) == (stored != wanted)


HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
CONF = {
    "spark.sql.streaming.stateStore.providerClass": HDFS,
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.shuffle.partitions": "4",
}
TIMES = {"batchWatermarkMs": 3, "batchTimestampMs": 2}
DEDUPE, JOIN = SparkOperator("dedupe"), SparkOperator("symmetricHashJoin")


def mixed(
    storage: LocalStorage,
    snapshot: CheckpointMetadata,
    directory: Path,
    names: tuple[str, ...],
    **conf: str,
) -> RestoreSource:
    """Operator `count` next to some of Spark's own."""
    (stored,) = snapshot.operators
    spark_operators = tuple(
        SparkOperatorMetadata(
            n,
            name,
            (SparkOperatorFile("0/4.delta", storage.write(f"shared/native-{n}", [b"%d" % n])),),
        )
        for n, name in enumerate(names, start=1)
    )
    offsets = "v1\n" + json.dumps({**TIMES, "conf": {**CONF, **conf}}) + "\n-"
    whole = msgspec.structs.replace(
        snapshot,
        operators=(msgspec.structs.replace(stored, key_schema=KEY, handles=()),),
        spark_operators=spark_operators,
        offsets_entry=offsets,
    )
    return RestoreSource(
        write_savepoint(whole, storage, str(directory), SavepointFormat.NATIVE).path
    )


def spark_plan(
    source: RestoreSource, *operators: SparkOperator, allow: bool = False, parallelism: int = 4
) -> RestorePlan:
    wanted = StatefulOperators.of([operator(parallelism=parallelism), *operators])
    return plan_of(source, wanted, RestoreRequest(source.path, allow_non_restored_state=allow))


def test_operators_of_spark_are_matched_by_name_and_number(
    storage: LocalStorage, snapshot: CheckpointMetadata, tmp_path: Path
) -> None:
    source = mixed(storage, snapshot, tmp_path / "sp", ("dedupe", "symmetricHashJoin", "dedupe"))
    made = spark_plan(source, JOIN, DEDUPE, DEDUPE)
    made.check()
    names = ("Spark's dedupe", "Spark's dedupe 2", "Spark's symmetricHashJoin")
    assert {outcomes(made)[name, "(operator)"] for name in names} == {"restored"}
    files = [file for each in made.spark_operators.operators for file in each.files]
    stored = {each.operator_id: each.files for each in source.metadata.spark_operators}
    assert [(file.operator_id, file.file) for file in files] == [
        (now, file.file) for now, then in ((2, 1), (3, 3), (1, 2)) for file in stored[then]
    ]
    assert len({file.file.path for file in files}) == 3
    for operators, allow in (((DEDUPE, DEDUPE), False), ((DEDUPE, JOIN), True), ((), False)):
        made = spark_plan(source, *operators, allow=allow)
        with pytest.raises(RestoreError, match="no uid"):
            made.check()
    made = spark_plan(source, DEDUPE, DEDUPE, allow=True)
    made.check()
    assert outcomes(made)["Spark's symmetricHashJoin", "(operator)"] == "dropped"
    with pytest.raises(RestoreError, match="0 operators dedupe"):
        spark_plan(mixed(storage, snapshot, tmp_path / "none", ()), DEDUPE).check()


@pytest.mark.parametrize(
    ("conf", "parallelism", "words"),
    [
        ({}, 8, "has 4 partitions"),
        ({"spark.sql.streaming.stateStore.providerClass": "evil.Provider"}, 4, "evil"),
        ({"spark.sql.streaming.stateStore.compression.codec": "evil.Codec"}, 4, "evil"),
    ],
)
def test_state_of_spark_that_does_not_fit_the_query(
    storage: LocalStorage,
    snapshot: CheckpointMetadata,
    tmp_path: Path,
    conf: dict[str, str],
    parallelism: int,
    words: str,
) -> None:
    """Also refused are names of classes, which Spark would load."""
    source = mixed(storage, snapshot, tmp_path / "sp", ("dedupe",), **conf)
    made = spark_plan(source, DEDUPE, parallelism=parallelism)
    assert [row.operator for row in made.refused] == ["Spark's dedupe"]
    with pytest.raises(RestoreError, match=words):
        made.check()
