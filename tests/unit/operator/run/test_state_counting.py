"""Counting a subtask's state: all of it while it is small, otherwise whole key groups."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.formats.handle import Handle, StateCounts, StateDescriptor
from pyspark_ckpt.operator.run import state_counting
from pyspark_ckpt.operator.run.state_counting import COST_SHARE, FEW_ENTRIES, StateCounting, is_due
from pyspark_ckpt.operator.table.stored_keys import TIMERS_ID, encode_key_group, encode_time
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.values.codec import key_encoder
from state_backends import BACKEND_TYPES, Changes, StateBackend, open_backend

GROUPS = range(32, 64)
"""Of subtask 1 of 4."""
STATES = (
    StateDescriptor(name="value", kind="value", value_schema="{}"),
    StateDescriptor(name="map", kind="map", value_schema="{}", map_key_schema="{}"),
    StateDescriptor(name="gone", kind="value", value_schema="{}", sweeps=1),
)
encode = key_encoder()
Entries = dict[bytes, bytes]


@pytest.fixture(params=BACKEND_TYPES)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateBackend]:
    with open_backend(request.param, tmp_path / "state", create=True) as opened:
        opened.load((), "empty")
        yield opened


def entries_of(seed: int, keys: int) -> Entries:
    """Return a value and a timer per key, a map of three per third key, and others' entries."""
    choices = random.Random(seed)
    entries = {encode_key_group(group) + b"\x00x": b"other" for group in (0, 31, 64)}
    entries[b"\x80\x00" + encode_time(1)] = b""
    for number in range(keys):
        key, group = (
            encode((f"key {number}",)),
            encode_key_group(random.Random(number).choice(GROUPS)),
        )
        entries[group + b"\x00" + key] = b"v" * choices.randrange(9)
        entries[group + TIMERS_ID + key + encode_time(number)] = b""
        if number % 3 == 0:
            for n in range(3):
                entries[group + b"\x01" + key + encode((n,))] = b"m"
    return entries


def handle() -> Handle:
    return Handle(
        query_id="q", uid="u", subtask=1, parallelism=4, max_parallelism=128, epoch=4,
        key_schema="{}", states=STATES,
    )  # fmt: skip


def counted(backend: StateBackend, changes: dict[bytes, bytes | None]) -> StateCounts:
    """Count as at a barrier, and bring the changes into the backend."""
    counting = StateCounting(StateTable(backend), handle())
    keys = sorted(changes)
    parts = [
        Changes(keys[start : start + 100], [changes[key] for key in keys[start : start + 100]])
        for start in range(0, len(keys), 100)
    ]
    passed = list(counting.through(parts))
    assert passed == parts
    backend.apply(parts, "5")
    return counting.counts(STATES, 5, 77)


def model(entries: Entries, groups: int) -> dict[str, tuple[int, int, int]]:
    """Count keys, entries and bytes of the first key groups in the obvious, slow way."""
    first, last = encode_key_group(GROUPS.start), encode_key_group(GROUPS.start + groups)
    inside = {key: value for key, value in entries.items() if first <= key < last}
    sums = {}
    for name, state in (("value", 0), ("map", 1), ("timers", 255)):
        mine = {key: value for key, value in inside.items() if key[2] == state}
        users = {key.split(b"key ")[1].split(b"\x91")[0] for key in mine}
        size = sum(len(key) + len(value) for key, value in mine.items())
        sums[name] = (len(users), len(mine), size)
    return sums


def check(counts: StateCounts, entries: Entries) -> None:
    wanted = model(entries, counts.groups)
    assert [state.name for state in counts.states] == ["value", "map"]
    for state in counts.states:
        assert (state.keys, state.entries, state.size_bytes) == wanted[state.name]
    assert counts.timers == wanted["timers"][1]
    assert (counts.epoch, counts.counted_at_ms, counts.of_groups) == (5, 77, len(GROUPS))


def test_a_small_state_is_counted_whole_with_what_the_epoch_wrote(backend: StateBackend) -> None:
    before = entries_of(1, 60)
    counts = counted(backend, dict(before))
    assert counts.groups == counts.of_groups
    check(counts, before)
    removed: dict[bytes, bytes | None] = dict.fromkeys(sorted(before)[5::7])
    added = entries_of(2, 90)
    counts = counted(backend, {**removed, **added})
    check(counts, {**{k: v for k, v in before.items() if k not in removed}, **added})


def test_of_a_larger_one_whole_key_groups_that_stand_for_all(backend: StateBackend) -> None:
    before = entries_of(3, 4_000)
    counted(backend, dict(before))
    changes = entries_of(4, 300)
    counts = counted(backend, dict(changes))
    after = {**before, **changes}
    assert 0 < counts.groups < counts.of_groups
    check(counts, after)
    wanted = model(after, counts.of_groups)["value"][0]
    assert counts.states[0].keys * counts.of_groups / counts.groups == pytest.approx(
        wanted, rel=0.2
    )


def test_of_many_new_entries_the_first_key_groups(
    backend: StateBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_counting, "MOST_ENTRIES", 500)
    entries = entries_of(5, 2_000)
    counts = counted(backend, dict(entries))
    assert 0 < counts.groups < counts.of_groups
    check(counts, entries)


def test_a_key_group_that_is_too_large_is_not_counted(
    backend: StateBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_counting, "MOST_ENTRIES", 50)
    entries = entries_of(6, 4_000)
    for changes in (entries, {}):
        counts = counted(backend, dict(changes))
        assert (counts.groups, counts.states, counts.timers) == (0, (), 0)


def test_counting_takes_a_small_share_of_the_time() -> None:
    counts = StateCounts(
        epoch=1, counted_at_ms=1_000, took_us=5_000, groups=1, of_groups=2, timers=0, states=()
    )
    assert is_due(None, 0)
    assert not is_due(counts, 1_000 + 5 * COST_SHARE - 1)
    assert is_due(counts, 1_000 + 5 * COST_SHARE)
    assert is_due(counts, 999)  # the clock was put back
    assert is_due(msgspec.structs.replace(counts, took_us=0), 1_000)
    whole = msgspec.structs.replace(counts, of_groups=1, timers=FEW_ENTRIES)
    assert is_due(whole, 1_000)  # a small state is always exact
    assert not is_due(msgspec.structs.replace(whole, timers=FEW_ENTRIES + 1), 1_000)
