"""What a migration may be."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.migration import Migration


def cents(row: Any) -> tuple[int]:
    return (row.euros * 100,)


@pytest.mark.parametrize(
    "parts",
    [{"value": cents}, {"key": cents}, {"renamed_from": "a"}, {"value": cents, "key": cents}],
)
def test_any_part_alone_is_a_migration(parts: dict[str, Any]) -> None:
    migration = Migration(**parts)
    empty = {"value": None, "key": None, "renamed_from": None}
    assert {name: getattr(migration, name) for name in empty} == {**empty, **parts}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, r"nothing is given; give value=, key= or renamed_from="),
        ({"value": "x"}, r"value='x' is not a function"),
        ({"value": cents, "key": 1}, r"key=1 is not a function"),
        ({"renamed_from": ""}, r"renamed_from='' is not a name"),
        ({"renamed_from": 7}, r"renamed_from=7 is not a name"),
        ({"renamed_from": cents}, r"renamed_from=.* is not a name"),
    ],
)
def test_anything_else_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Migration(**parts)


def test_it_does_not_change_and_takes_names_only() -> None:
    with pytest.raises(FrozenInstanceError):
        Migration(value=cents).value = None  # type: ignore[misc]
    with pytest.raises(TypeError):
        Migration(cents)  # type: ignore[misc]
