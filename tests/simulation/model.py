"""What must be true: the small model that every history is compared with.

An epoch has one input. It changes the state of each subtask by a function that is not commutative,
so an epoch that is lost, repeated or applied out of its order leaves another state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable.stored_files import read_base, segment_changes
from pyspark_ckpt.storage.open import Storage
from state_backends import Changes

KEYS = (b"a", b"b", b"c", b"d", b"e")
SUBTASKS = 2

State = dict[bytes, bytes]


def written(value: int, subtask: int, state: State) -> dict[bytes, bytes | None]:
    """Return what an epoch with this input writes in a subtask."""
    digest = hashlib.sha256(b"%d %d" % (value, subtask)).digest()
    writes: dict[bytes, bytes | None] = {}
    for number in range(digest[0] % 3):
        key = KEYS[digest[1 + number] % len(KEYS)]
        if digest[5 + number] < 40:
            writes[key] = None
        else:
            writes[key] = hashlib.sha256(state.get(key, b"") + digest).digest()[:12]
    return writes


def changed(state: State, writes: dict[bytes, bytes | None]) -> State:
    """Return the state after some writes."""
    merged = {**state, **writes}
    return {key: value for key, value in merged.items() if value is not None}


@dataclass
class Timeline:
    """The committed history of one query: its inputs, and the state of each subtask."""

    query_id: str
    directory: str
    first: int = 0
    states: list[list[State]] = field(default_factory=list)
    inputs: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    is_moving: bool = False

    def after(self, epoch: int) -> list[State]:
        """Return the state after an epoch."""
        if epoch < self.first:
            return [{} for _ in range(SUBTASKS)]
        return self.states[epoch - self.first]

    def begin(self, epoch: int, value: int) -> None:
        """Note the input of an epoch."""
        assert epoch not in self.inputs, f"epoch {epoch} has two inputs"
        assert epoch == self.first + len(self.states), f"epoch {epoch} begins out of order"
        self.inputs[epoch] = value
        before = self.after(epoch - 1)
        self.states.append(
            [changed(state, written(value, number, state)) for number, state in enumerate(before)]
        )


def stored_state(storage: Storage, handle: Handle) -> State:
    """Return the state that a handle names, read with the library's own readers."""
    state: State = {}
    if handle.base is not None:
        _apply(state, read_base(storage, handle.base))
    _apply(state, segment_changes(storage, handle.segments))
    return state


def _apply(state: State, parts: Iterable[Changes]) -> None:
    for part in parts:
        for key, value in zip(part.keys, part.values, strict=True):
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value


def check_handles(
    storage: Storage, handles: Iterable[Handle], wanted: list[State], where: str
) -> None:
    """Check that the handles of an operator name exactly a state; a missing one is empty."""
    found = {handle.subtask: stored_state(storage, handle) for handle in handles}
    for number, state in enumerate(wanted):
        assert found.get(number, {}) == state, (
            f"{where}: the state of subtask {number} is {found.get(number, {})}, not {state}"
        )
