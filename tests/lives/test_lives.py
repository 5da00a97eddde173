"""Walks over the lives of queries; `make prove WHAT=lives` runs longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lives.walk import Walk

SEEDS = [
    pytest.param(1, 25, marks=pytest.mark.slow),
    *[pytest.param(seed, 40, marks=pytest.mark.soak) for seed in range(100, 150)],
]


@pytest.mark.own_jvm
@pytest.mark.parametrize(("seed", "steps"), SEEDS)
def test_a_walk(tmp_path: Path, seed: int, steps: int) -> None:
    """Whatever a query goes through, it runs exactly, or says what to do, and that works."""
    walk = Walk(tmp_path / "walk", seed)
    walk.run(steps)
    assert walk.checked["output"] > 0
    assert walk.checked["state"] > 0, walk.done
