"""Items in lists: none is lost, and only the last item of a list may pass a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_ckpt.gathering import gathered


@given(
    st.lists(st.binary(max_size=9)),
    st.integers(1, 20),
    st.none() | st.integers(1, 5),
)
def test_lists_hold_all_items_in_order_within_the_limits(
    items: list[bytes], most_bytes: int, most_entries: int | None
) -> None:
    lists = list(gathered(items, most_bytes, len, most_entries))
    assert [item for each in lists for item in each] == items
    for each in lists:
        assert each
        assert sum(map(len, each[:-1])) < most_bytes
        assert most_entries is None or len(each) <= most_entries
    for each in lists[:-1]:
        assert sum(map(len, each)) >= most_bytes or len(each) == most_entries


def test_an_item_may_be_several_entries() -> None:
    lists = gathered(["aaa", "a", "aa", "a"], 100, len, 3, len)
    assert list(lists) == [["aaa"], ["a", "aa"], ["a"]]
