"""Stored keys: times in order, and each kind of entry in its own range."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.operator.rows.keys import MAX_MAX_PARALLELISM
from pyspark_ckpt.operator.table import stored_keys
from pyspark_ckpt.operator.table.stored_keys import (
    MAX_STATES,
    OPERATOR_STATE,
    RAW_STATE,
    TIME_INDEX,
    TIMERS_ID,
    decode_time,
    encode_key_group,
    encode_time,
    is_keyed,
    state_id_of,
)
from state_backends.backend import FIRST_RESERVED_KEY

TIMES = st.integers(-(2**63), 2**63 - 1)


@given(times=st.lists(TIMES, min_size=2))
def test_times_come_back_and_keep_their_order(times: list[int]) -> None:
    encoded = [encode_time(time) for time in times]
    assert [decode_time(data) for data in encoded] == times
    assert sorted(encoded) == [encode_time(time) for time in sorted(times)]
    assert {len(data) for data in encoded} == {stored_keys.TIME_BYTES}


def test_no_range_reaches_into_another() -> None:
    last_keyed = encode_key_group(MAX_MAX_PARALLELISM - 1) + TIMERS_ID + b"\xff" * 20
    assert last_keyed < TIME_INDEX < OPERATOR_STATE < RAW_STATE < FIRST_RESERVED_KEY
    assert is_keyed(last_keyed)
    for start in (TIME_INDEX, OPERATOR_STATE, RAW_STATE):
        assert not is_keyed(start)
        assert not is_keyed(start + b"\xff" * 20)


@given(group=st.integers(0, MAX_MAX_PARALLELISM - 1), state_id=st.integers(0, MAX_STATES))
def test_the_state_of_a_keyed_entry_is_found(group: int, state_id: int) -> None:
    key = encode_key_group(group) + bytes([state_id]) + b"key"
    assert is_keyed(key)
    assert state_id_of(key) == state_id
