"""The keys of a part: their order, and their stored keys, as Python has them."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.operator.table.keys import PartKeys
from pyspark_ckpt.operator.table.stored_keys import encode_key_group


@given(st.lists(st.tuples(st.integers(0, 32767), st.binary(max_size=5)), max_size=20), st.randoms())
def test_keys_are_in_the_order_of_their_bytes(
    keys: list[tuple[int, bytes]], rng: random.Random
) -> None:
    groups = np.array([group for group, _ in keys], np.int32)
    part = PartKeys(groups, pa.array([key for _, key in keys], pa.binary()))
    expected = sorted((encode_key_group(group), key) for group, key in keys)
    assert list(part) == part.pairs() == expected
    assert len(part) == len(keys)
    assert [keys[place] for place in part.order.tolist()] == sorted(keys)
    assert part[1:3] == expected[1:3]
    some = [rng.randrange(len(keys)) for _ in range(5)] if keys else []
    for places in (some, range(len(keys)), list(reversed(range(len(keys))))):
        assert part.below(b"\x07", places) == [
            expected[place][0] + b"\x07" + expected[place][1] for place in places
        ]
