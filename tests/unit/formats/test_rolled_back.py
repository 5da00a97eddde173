"""Which epochs are void after each rollback of a location, and after each undo."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ckpt.errors import CorruptFileError, FencedError
from pyspark_ckpt.formats.location_files import (
    RolledBack,
    read_rolled_back,
    void_after_return,
    void_after_rollback,
    write_rolled_back,
)
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.local import LocalStorage

A10, B12 = RolledBack("a", 10), RolledBack("b", 12)
ALL_B, ALL_C = RolledBack("b", -1), RolledBack("c", -1)


def test_rollbacks_one_after_the_other() -> None:
    """Query a goes back to epoch 10 and is b then, which goes back to epoch 12 and is c."""
    of_b = void_after_rollback((), "a", 10)
    assert of_b == (A10,)
    assert void_after_rollback(of_b, "b", 12) == (A10, B12)


def test_the_way_back() -> None:
    """The restored query never knew the others, so all that they wrote is void."""
    assert void_after_return((), "a", (A10,), "b") == (ALL_B,)
    assert void_after_return((), "a", (A10, B12), "c") == (ALL_B, ALL_C)
    assert void_after_return((A10,), "b", (A10, B12), "c") == (A10, ALL_C)


def test_the_way_back_and_forth_again() -> None:
    of_a = void_after_return((), "a", (A10, B12), "c")
    assert void_after_return((A10, B12), "c", of_a, "a") == (A10, B12)
    assert void_after_rollback(of_a, "a", 14) == (ALL_B, ALL_C, RolledBack("a", 14))


class Held:
    """A lease, until it is lost."""

    is_lost = False

    def check(self) -> None:
        if self.is_lost:
            raise FencedError("lost")


def test_the_file(tmp_path: Path) -> None:
    lease = Held()
    location = FencedStorage(LocalStorage(tmp_path), lease)
    assert read_rolled_back(location) == ()
    for void in ((A10,), (A10,), (A10, B12)):
        write_rolled_back(location, void)
        assert read_rolled_back(location) == void
    lease.is_lost = True
    with pytest.raises(FencedError):
        write_rolled_back(location, (A10,))
    assert read_rolled_back(location) == (A10, B12)


@pytest.mark.parametrize("content", [b"", b"{}", b'[{"query_id": 1, "after": 2}]', b"\xff"])
def test_a_changed_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "_rolled_back.json").write_bytes(content)
    with pytest.raises(CorruptFileError, match=r"_rolled_back\.json"):
        read_rolled_back(LocalStorage(tmp_path))
