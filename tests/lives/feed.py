"""The input of a walk, and the rows that it has to become."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

KEYS = ("ada", "bob", "cyd", "dan", "eve")

OutputRow = tuple[str, int, int]


class Feed:
    """Files that a query reads one after the other.

    Every query of a walk reads them in this order. So what a row has to become does not depend on
    the query, and a position is the number of files that were read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[list[OutputRow]] = []
        self._counts: list[Counter[str]] = [Counter()]
        self._file_of: dict[int, int] = {}
        path.mkdir(parents=True)

    @property
    def end(self) -> int:
        """The number of files."""
        return len(self._rows)

    def add(self, chance: random.Random) -> None:
        """Add a file."""
        counts, rows = Counter(self._counts[-1]), []
        for _ in range(chance.randint(1, 6)):
            key, row_id = chance.choice(KEYS), len(self._file_of)
            counts[key] += 1
            self._file_of[row_id] = self.end
            rows.append((key, counts[key], row_id))
        hidden = self.path / f".{self.end:05}.tmp"
        lines = [json.dumps({"k": key, "id": row_id}) + "\n" for key, _, row_id in rows]
        hidden.write_text("".join(lines))
        os.utime(hidden, (1_700_000_000 + self.end, 1_700_000_000 + self.end))
        hidden.rename(self._file(self.end))
        self._rows.append(rows)
        self._counts.append(counts)

    def hide(self, position: int) -> None:
        """Take a file away, as a rule that deletes old input does."""
        self._file(position).rename(self._file(position).with_name(f"_{position:05}.json"))

    def show(self, position: int) -> None:
        """Put a file back."""
        self._file(position).with_name(f"_{position:05}.json").rename(self._file(position))

    def _file(self, position: int) -> Path:
        return self.path / f"{position:05}.json"

    def rows(self, begin: int, end: int) -> Counter[OutputRow]:
        """Return what the files from one position to another have to become."""
        return Counter(row for rows in self._rows[begin:end] for row in rows)

    def counts(self, position: int) -> dict[str, int]:
        """Return the state at a position."""
        return dict(self._counts[position])

    def before(self, rows: Iterable[OutputRow], position: int) -> Counter[OutputRow]:
        """Return those rows that come from files before a position."""
        return Counter(row for row in rows if self._file_of[row[2]] < position)
