"""Key groups and subtasks, and the tokens that Spark's own hash sends to each partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.rows.keys import (
    MAX_MAX_PARALLELISM,
    check_max_parallelism,
    default_max_parallelism,
    key_groups_of,
    subtask_of,
    subtask_tokens,
)
from pyspark_ckpt.values.hashing import SEED, hash_integer, signed

PARALLELISMS = [1, 2, 3, 4, 5, 7, 8, 16, 127, 128]
MAX_PARALLELISMS = [128, 129, 200, 1000, MAX_MAX_PARALLELISM]

SPARK_HASHES = {
    0: 933211791, 1: -559580957, 2: 1765031574, 3: -1823081949, 7: 1079293707, 42: 29417773,
    1000: -14577491, 123456789: -598405280, 2**31 - 1: 133916647, -1: -1604776387,
    -(2**31): 723455942,
}  # fmt: skip
"""What ``SELECT hash(CAST(v AS INT))`` returned on Spark 4.3."""

SPARK_TOKENS = {
    1: (0,),
    2: (2, 0),
    3: (0, 1, 11),
    4: (12, 6, 2, 0),
    5: (22, 0, 4, 1, 2),
    7: (12, 0, 1, 9, 3, 2, 11),
    8: (12, 6, 5, 1, 25, 15, 2, 0),
    16: (12, 16, 5, 1, 37, 20, 2, 35, 13, 6, 49, 7, 25, 15, 4, 0),
}
"""The least integers that Spark 4.3 put into each partition, by ``pmod(hash(v), partitions)``."""


@pytest.mark.parametrize("max_parallelism", MAX_PARALLELISMS)
@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_subtasks_share_out_all_key_groups_in_order(parallelism: int, max_parallelism: int) -> None:
    ranges = [key_groups_of(n, parallelism, max_parallelism) for n in range(parallelism)]
    assert [group for groups in ranges for group in groups] == list(range(max_parallelism))
    sizes = {len(groups) for groups in ranges}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(st.integers(1, MAX_MAX_PARALLELISM), st.data())
def test_a_key_group_is_in_the_range_of_its_subtask(
    max_parallelism: int, data: st.DataObject
) -> None:
    parallelism = data.draw(st.integers(1, max_parallelism))
    key_group = data.draw(st.integers(0, max_parallelism - 1))
    subtask = subtask_of(key_group, parallelism, max_parallelism)
    assert 0 <= subtask < parallelism
    assert key_group in key_groups_of(subtask, parallelism, max_parallelism)


@given(st.integers(1, 200), st.integers(1, 200))
def test_every_parallelism_up_to_the_maximum_is_a_partition(one: int, other: int) -> None:
    parallelism, max_parallelism = sorted((one, other))
    ranges = [key_groups_of(n, parallelism, max_parallelism) for n in range(parallelism)]
    assert [group for groups in ranges for group in groups] == list(range(max_parallelism))


@pytest.mark.parametrize(("value", "expected"), SPARK_HASHES.items())
def test_the_hash_of_an_integer_is_sparks(value: int, expected: int) -> None:
    assert signed(hash_integer(value, SEED)) == expected


@pytest.mark.parametrize(("parallelism", "expected"), SPARK_TOKENS.items())
def test_tokens_are_those_that_spark_puts_into_the_partitions(
    parallelism: int, expected: tuple[int, ...]
) -> None:
    assert subtask_tokens(parallelism) == expected


@pytest.mark.parametrize("parallelism", [1, 2, 3, 10, 64, 200, 1000])
def test_every_subtask_has_a_token_of_its_own(parallelism: int) -> None:
    tokens = subtask_tokens(parallelism)
    assert len(set(tokens)) == len(tokens) == parallelism
    partitions = [signed(hash_integer(token, SEED)) % parallelism for token in tokens]
    assert partitions == list(range(parallelism))
    assert all(0 <= token < 2**31 for token in tokens), "a token is a Spark integer"


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128), (2, 128), (85, 128), (86, 256), (128, 256), (170, 256), (171, 256), (172, 512),
        (200, 512), (20_000, 32_768), (32_768, 32_768), (100_000, 32_768),
    ],
)  # fmt: skip
def test_the_default_maximum_is_flinks(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(("maximum", "parallelism"), [(1, 1), (4, 4), (128, 3), (32_768, 200)])
def test_a_maximum_from_the_parallelism_to_the_bound_is_taken(
    maximum: int, parallelism: int
) -> None:
    assert check_max_parallelism(maximum, parallelism) == maximum


@pytest.mark.parametrize(("maximum", "parallelism"), [(0, 1), (3, 4), (32_769, 4), (-1, 1)])
def test_another_maximum_is_refused_with_both_bounds(maximum: int, parallelism: int) -> None:
    """Scenario 38: a maximum below the parallelism."""
    with pytest.raises(PlanError, match=rf"{maximum}.*= {parallelism}\).*32768"):
        check_max_parallelism(maximum, parallelism)
