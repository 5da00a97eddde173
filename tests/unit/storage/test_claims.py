"""Claims: each number is had once, and the newest is found without a listing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.storage.claims import Claims
from pyspark_ckpt.storage.open import LocalStorage


@pytest.fixture
def claims(tmp_path: Path) -> Claims:
    return Claims(LocalStorage(tmp_path), lambda number: f"claims/{number}")


@pytest.mark.parametrize("taken", [*range(10), 63, 64, 65, 100])
def test_the_newest_is_found_by_names(
    claims: Claims, tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of an object store may lack names that are new."""
    for number in range(1, taken + 1):
        assert claims.take(number, b"x")

    def no_listing(*_: Any) -> list[str]:
        raise AssertionError("listed")

    monkeypatch.setattr(LocalStorage, "list", no_listing)
    assert claims.newest() == taken
    assert claims.has(taken) == (taken > 0)
    assert not claims.has(taken + 1)


def test_a_number_is_had_once_and_keeps_its_content(claims: Claims, tmp_path: Path) -> None:
    assert claims.take(1, b"first")
    assert not claims.take(1, b"second")
    assert (tmp_path / "claims" / "1").read_bytes() == b"first"


def test_of_those_who_take_the_next_at_once_each_gets_another(
    claims: Claims, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda n: (claims.take_next(b"%d" % n), n), range(40)))
    assert sorted(number for number, _ in taken) == list(range(1, 41))
    for number, content in taken:
        assert (tmp_path / "claims" / str(number)).read_bytes() == b"%d" % content
