"""What is left to collect after a task, and when all garbage is collected."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pyspark_ckpt.operator.run.garbage import (
    COLLECTED_AFTER_BYTES,
    COLLECTED_AFTER_S,
    SeldomCollection,
    leaves_no_garbage,
    used_memory_bytes,
)

pytestmark = pytest.mark.slow


class Node:
    """An object that refers to itself, which only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@dataclass
class Process:
    """A process whose clock and memory a test sets."""

    now_s: float = 1000.0
    memory_bytes: int = 10**9
    nodes: list[weakref.ref[Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.collection = SeldomCollection(lambda: self.now_s, lambda: self.memory_bytes)

    def task(self) -> None:
        """Leave a cycle, and end the task."""
        self.nodes.append(weakref.ref(Node()))
        self.collection.end_of_task()

    @property
    def alive(self) -> int:
        return sum(node() is not None for node in self.nodes)


@pytest.fixture(autouse=True)
def no_automatic_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def test_a_collection_after_a_task_has_nothing_to_walk() -> None:
    everything = len(gc.get_objects())
    Process().task()
    assert len(gc.get_objects()) < everything / 100


def test_cycles_stay_until_the_time_is_over() -> None:
    process = Process()
    process.task()
    process.now_s += COLLECTED_AFTER_S - 1
    process.task()
    gc.collect()  # as PySpark's daemon does after each task
    assert process.alive == 2
    process.now_s += 1
    process.task()
    assert process.alive == 0
    process.now_s += COLLECTED_AFTER_S - 1
    process.task()
    assert process.alive == 1, "the time begins again"


def test_cycles_stay_until_the_process_has_grown() -> None:
    process = Process()
    process.memory_bytes += COLLECTED_AFTER_BYTES - 1
    process.task()
    assert process.alive == 1
    process.memory_bytes += 1
    process.task()
    assert process.alive == 0
    process.memory_bytes += COLLECTED_AFTER_BYTES - 1
    process.task()
    assert process.alive == 1, "it counts from the last collection"


@pytest.mark.soak
def test_garbage_of_many_tasks_is_bounded() -> None:
    """Each task leaves a megabyte in a cycle; without collections that were 500 MB."""
    collection = SeldomCollection(lambda: 0.0, used_memory_bytes)
    before_bytes = used_memory_bytes()
    most_bytes = 0
    for _ in range(500):
        node = Node()
        node.payload = bytearray(b"x" * 1024**2)  # type: ignore[attr-defined]
        del node
        collection.end_of_task()
        most_bytes = max(most_bytes, used_memory_bytes() - before_bytes)
    assert most_bytes < 2 * COLLECTED_AFTER_BYTES


def test_a_task_that_fails_or_is_given_up_ends_too() -> None:
    @leaves_no_garbage
    def task(*, fails: bool) -> Iterator[int]:
        yield 1
        if fails:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        list(task(fails=True))
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    given_up = task(fails=False)
    next(given_up)
    given_up.close()
    assert gc.get_freeze_count() > 0
