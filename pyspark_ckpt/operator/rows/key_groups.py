"""Key groups, subtasks and the tokens that bring a subtask to its own Spark partition.

A key belongs to key group ``pmod(hash(key columns), max_parallelism)`` for good; key groups are
spread over subtasks in ranges, as Flink's KeyGroupRangeAssignment does.
"""

from __future__ import annotations

from functools import cache

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.rows.murmur import SEED, hash_integer, signed

MAX_MAX_PARALLELISM = 32768
"""Flink's upper bound; it also keeps a key group's two bytes below the reserved keys."""


def default_max_parallelism(parallelism: int) -> int:
    """Return Flink's default number of key groups: 1.5 x parallelism as a power of two, 128 up."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), 128), MAX_MAX_PARALLELISM)


def check_max_parallelism(max_parallelism: int, parallelism: int) -> int:
    """Return `max_parallelism` if it can serve `parallelism` subtasks."""
    if not parallelism <= max_parallelism <= MAX_MAX_PARALLELISM:
        raise PlanError(
            f"maxParallelism is {max_parallelism}: it must lie between the parallelism "
            f"(spark.sql.shuffle.partitions = {parallelism}) and {MAX_MAX_PARALLELISM}"
        )
    return max_parallelism


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that holds a key group."""
    return key_group * parallelism // max_parallelism


def key_groups_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Return the key groups that a subtask holds."""
    start = -(-subtask * max_parallelism // parallelism)
    stop = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(start, stop)


@cache
def subtask_tokens(parallelism: int) -> tuple[int, ...]:
    """Return the token of each subtask.

    Spark's hash partitioning puts the integer ``tokens[i]`` into partition *i*, so each subtask
    gets a partition, and a call of the Python function, of its own.
    """
    tokens: dict[int, int] = {}
    token = 0
    while len(tokens) < parallelism:
        tokens.setdefault(signed(hash_integer(token, SEED)) % parallelism, token)
        token += 1
    return tuple(tokens[partition] for partition in range(parallelism))
