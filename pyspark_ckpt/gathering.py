"""Many small things gathered into few lists of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def gathered(
    items: Iterable[Item],
    most_bytes: int,
    bytes_of: Callable[[Item], int],
    most_entries: int | None = None,
    entries_of: Callable[[Item], int] = lambda _: 1,
) -> Generator[list[Item], None, None]:
    """Yield the items in lists; the item that reaches a limit is the last of its list."""
    batch: list[Item] = []
    entries = size_bytes = 0
    for item in items:
        batch.append(item)
        entries += entries_of(item)
        size_bytes += bytes_of(item)
        if size_bytes >= most_bytes or (most_entries is not None and entries >= most_entries):
            yield batch
            batch, entries, size_bytes = [], 0, 0
    if batch:
        yield batch
