"""An epoch names the attributes that it loses, and no others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyspark_ckpt.operator.run.lost_attributes import MAX_ITEMS, LostAttributes


class Held:
    """The processor that the tests' processors extend."""

    def __init__(self) -> None:
        self.n = 0
        self.name = "x"
        self.seen: set[int] = set()
        self.items = [1, 2]
        self.rates = {"a": 1.0}
        self.queue: deque[int] = deque()
        self.large = list(range(MAX_ITEMS + 1))
        self.array = np.zeros(3)
        self.cache: dict[str, int] = {}
        self.label = ""
        self.recent: list[int] = []

    def init(self) -> None:
        self.handle = object()
        self.cache = {}
        self.n_of_epoch = 0
        self.set_up()

    def set_up(self) -> None:
        self.label = ""
        self.recent.clear()


def lost(work: Callable[[Any], Any], kind: type = Held) -> tuple[str, ...]:
    held = kind()
    attributes = LostAttributes(held)
    with attributes.during_init():
        held.init()
    work(held)
    with attributes.during_end():
        return attributes.lost


def each(held: Any) -> None:
    held.seen.add(1)
    held.items[0] = 7
    held.rates["a"] = 2.0
    held.queue.append(1)
    held.large.append(1)
    held.n += 1
    held.array = np.ones(3)
    held.new = 3


def test_what_is_changed_or_new_is_named() -> None:
    names = ("array", "items", "large", "n", "new", "queue", "rates", "seen")
    assert lost(each) == names


@pytest.mark.parametrize(
    "work",
    [
        lambda held: None,
        lambda held: held.cache.update(a=1),
        lambda held: setattr(held, "n_of_epoch", 5),
        lambda held: setattr(held, "handle", object()),
        lambda held: setattr(held, "n", 0),
        lambda held: setattr(held, "label", "b"),
        lambda held: held.recent.append(1),
        lambda held: setattr(held, "name", "".join(["x"])),
        lambda held: (held.seen.add(1), held.seen.clear()),
        lambda held: held.items.reverse() or held.items.reverse(),
    ],
)
def test_what_init_sets_and_what_is_put_back_is_not(work: Callable[[Any], Any]) -> None:
    assert lost(work) == ()


class Raw(Held):
    """Keeps its attributes in raw state."""

    def snapshotState(self, context: Any) -> None:
        pass


class Slots:
    __slots__ = ("n",)

    def init(self) -> None:
        self.n = 1


def test_processors_that_keep_them_or_have_none() -> None:
    assert lost(each, Raw) == ()
    assert lost(lambda held: setattr(held, "n", 2), Slots) == ()
