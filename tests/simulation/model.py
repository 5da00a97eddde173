"""What must be true: the small model that every history is compared with.

An epoch has one input. It changes the state of some keys by a function that is not commutative, so
an epoch that is lost, repeated or applied out of its order leaves another state. What it does to a
key is the same in any subtask.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.operator.durable.stored_files import read_base, segment_changes
from pyspark_ckpt.operator.rows.keys import key_groups_of
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.storage.open import Storage
from state_backends import Changes

MAX_PARALLELISM = 8
SUBTASKS = 2
"""The parallelism of a query until it is rescaled."""

KEYS = tuple(
    encode_key_group(number % MAX_PARALLELISM) + b"\0" + msgspec.msgpack.encode((name,))
    for number, name in enumerate("abcdefghij")
)
"""The stored keys: some key groups have two."""

State = dict[bytes, bytes]


def written(value: int, keys: Iterable[bytes], state: State) -> dict[bytes, bytes | None]:
    """Return what an epoch with this input writes of these keys; each key is on its own."""
    writes: dict[bytes, bytes | None] = {}
    for key in keys:
        digest = hashlib.sha256(b"%d %s" % (value, key)).digest()
        if digest[0] < 55:
            writes[key] = None if digest[1] < 40 else _mixed(state.get(key, b""), digest)
    return writes


def _mixed(before: bytes, digest: bytes) -> bytes:
    return hashlib.sha256(before + digest).digest()[:12]


def keys_of(subtask: int, parallelism: int) -> list[bytes]:
    """Return the keys whose key groups are a subtask's."""
    groups = key_groups_of(subtask, parallelism, MAX_PARALLELISM)
    return [key for key in KEYS if int.from_bytes(key[:2], "big") in groups]


def of_subtask(state: State, subtask: int, parallelism: int) -> State:
    """Return the part of a state that is a subtask's."""
    keys = keys_of(subtask, parallelism)
    return {key: value for key, value in state.items() if key in keys}


def changed(state: State, writes: dict[bytes, bytes | None]) -> State:
    """Return the state after some writes."""
    merged = {**state, **writes}
    return {key: value for key, value in merged.items() if value is not None}


@dataclass
class Timeline:
    """The committed history of one query: its inputs, and the state after each epoch."""

    query_id: str
    directory: str
    first: int = 0
    states: list[State] = field(default_factory=list)
    inputs: dict[int, int | None] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    is_moving: bool = False

    def after(self, epoch: int) -> State:
        """Return the state after an epoch."""
        if epoch < self.first:
            return {}
        return self.states[epoch - self.first]

    def begin(self, epoch: int, value: int | None) -> None:
        """Note the input of an epoch, ``None`` for an epoch without input."""
        assert epoch not in self.inputs, f"epoch {epoch} has two inputs"
        assert epoch == self.first + len(self.states), f"epoch {epoch} begins out of order"
        self.inputs[epoch] = value
        before = self.after(epoch - 1)
        writes = {} if value is None else written(value, KEYS, before)
        self.states.append(changed(before, writes))


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


def check_handles(storage: Storage, handles: Iterable[Handle], wanted: State, where: str) -> None:
    """Check that the handles of an operator name exactly a state; a missing one is empty."""
    left = dict(wanted)
    for handle in handles:
        state = of_subtask(left, handle.subtask, handle.parallelism)
        found = stored_state(storage, handle)
        assert found == state, f"{where}: subtask {handle.subtask} has {found}, not {state}"
        left = {key: value for key, value in left.items() if key not in state}
    assert not left, f"{where}: no subtask has {left}"
