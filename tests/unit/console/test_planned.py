"""How a page says what a restore would do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.console.data.planned import plan_against, plan_rows, plan_summary
from pyspark_ckpt.formats.layout import METADATA_NAME
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata, read_metadata
from pyspark_ckpt.operator.schema.verdict import StateOutcome, StateSchema, judge_state
from pyspark_ckpt.restore.planned import planned_state
from pyspark_ckpt.storage.open import LocalStorage
from tests.unit.snapshot.made_savepoint import MadeSavepoint

ONE = StateSchema("s", "value", T.StructType().add("a", "long"))
TWO = StateSchema("s", "value", T.StructType().add("a", "long").add("b", "long"))


def made(*outcomes: tuple[Any, ...]) -> Any:
    states = [planned_state("op", f"s{n}", *each) for n, each in enumerate(outcomes)]
    return SimpleNamespace(states=tuple(states))


def test_a_plan_is_summed_up_in_one_line() -> None:
    rows = plan_rows(
        made((StateOutcome.RESTORED, ""), (StateOutcome.MIGRATED, ""), (StateOutcome.KEPT, ""))
    )
    summary = "0 refused, 0 dropped, 0 evolved, 1 migrated, 1 kept but not in the program"
    assert plan_summary(rows) == summary
    assert [row.outcome for row in rows] == ["restored", "migrated", "kept, not in the program"]
    assert not any(row.is_loss for row in rows)


@pytest.mark.parametrize("outcome", [StateOutcome.REFUSED, StateOutcome.DROPPED])
def test_what_is_not_restored_is_a_loss(outcome: StateOutcome) -> None:
    (row,) = plan_rows(made((outcome, "")))
    assert row.is_loss
    assert f"1 {outcome.value}" in plan_summary([row])


def test_a_removed_field_is_a_loss_and_an_added_one_is_not() -> None:
    removed, added = (judge_state(*each) for each in ((TWO, ONE), (ONE, TWO)))
    assert removed.removed_fields == ("b",)
    rows = plan_rows(
        made(*((StateOutcome.MIGRATED, "", each.removed_fields) for each in (removed, added)))
    )
    assert [row.is_loss for row in rows] == [True, False]
    assert plan_summary(rows).endswith("1 with fields that are dropped")


NUMBER = T.StructType().add("n", "long")


def saved(directory: Path, names: tuple[str, ...], sources: int = 2) -> CheckpointMetadata:
    """Write a savepoint of a query with some sources, which have names or none."""
    made = MadeSavepoint(directory, T.StructType().add("k", "string"), [("a",)], 1)
    made.epoch(
        lambda handle: {"n": handle.getValueState("n", NUMBER)},
        lambda states, _: states["n"].update((1,)),
    )
    storage = LocalStorage(Path(made.save("savepoint", canonical=True)))
    made.close()
    metadata = read_metadata(storage)
    metadata = msgspec.structs.replace(
        metadata,
        offsets_entry=metadata.offsets_entry + "\n0" * (sources - 1),
        source_ids=tuple(range(sources)),
        source_names=names,
    )
    storage.delete([METADATA_NAME])
    storage.write(METADATA_NAME, [encode_metadata(metadata)])
    return metadata


@pytest.mark.parametrize(
    ("stored", "wanted", "refused"),
    [
        (("a", "b"), ("a", "b"), False),
        (("a", "b"), ("b", "a"), False),
        ((), (), False),
        ((), ("a", "b"), False),
        (("a", "b"), ("a", "c"), True),
        (("a", "b"), (), True),
    ],
)
def test_the_sources_are_those_of_the_program(
    tmp_path: Path, stored: tuple[str, ...], wanted: tuple[str, ...], refused: bool
) -> None:
    saved(tmp_path / "stored", stored)
    of_program = saved(tmp_path / "wanted", wanted)
    plan = plan_against(of_program, str(tmp_path / "stored" / "savepoint"), drops=False)
    assert [error for error in plan.errors if "a, b" not in str(error)] == []
    assert bool(plan.errors) == refused


def test_another_number_of_sources_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "stored", ())
    of_program = saved(tmp_path / "wanted", (), sources=1)
    plan = plan_against(of_program, str(tmp_path / "stored" / "savepoint"), drops=False)
    (error,) = plan.errors
    assert "has the offsets of 2 sources, the query reads 1" in str(error)
