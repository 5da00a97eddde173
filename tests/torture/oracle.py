"""The input of the tortured query, and what must come of it: exact for each key.

Shares nothing with the library. Rows of file f have the time 10 s times f, and the epoch of file f
sees the time of file f - 1 as its watermark. An epoch has one file. It has more if a driver is
killed between Spark's log of the source and its log of offsets: the next driver then adds a file.
So which files an epoch has is read from Spark's logs. The rows of a key in such an epoch may come
in any order.
"""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ORIGIN_MS = 1_704_067_200_000
STEP_MS = 10_000
AHEAD_MS = 15_000
TTL_MS = 25_000
KEYS = tuple(f"k{number}" for number in range(12))
MOST_ROWS = 6
_SCHEMA = pa.schema(
    [("key", pa.string()), ("file", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))]
)


class WrongOutputError(AssertionError):
    """What the query wrote is not what it must write."""


def time_ms(file: int) -> int:
    """Return the event time of all rows of a file."""
    return ORIGIN_MS + STEP_MS * file


@dataclass(frozen=True)
class Checked:
    """What an output was checked to have: files `first` to `last`, with their rows and timers."""

    first: int
    last: int
    rows: int
    timers: int


class Input:
    """Files of random rows, which a query reads oldest first.

    Parameters
    ----------
    directory
        Where the files are written.
    chance
        It decides which keys have rows.
    """

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._directory = directory
        self._chance = chance
        self.files: list[dict[str, int]] = []
        directory.mkdir(parents=True, exist_ok=True)

    def add(self) -> int:
        """Write the next file, which appears at once; return its number."""
        number = len(self.files)
        counts = {key: self._chance.randrange(MOST_ROWS) for key in KEYS}
        counts[self._chance.choice(KEYS)] += 1  # a file without rows would not be an epoch
        keys = [key for key, count in counts.items() for _ in range(count)]
        self._chance.shuffle(keys)
        columns = [keys, [number] * len(keys), [time_ms(number) * 1000] * len(keys)]
        table = pa.table(dict(zip(_SCHEMA.names, columns, strict=True)), _SCHEMA)
        hidden = self._directory / f".{number:06d}.tmp"
        pq.write_table(table, hidden)
        os.utime(hidden, (1_700_000_000 + number,) * 2)
        hidden.rename(self._directory / f"{number:06d}.parquet")
        self.files.append(counts)
        return number

    def check(
        self,
        output: Sequence[Mapping[str, Any]],
        *,
        is_whole: bool,
        epochs: Mapping[int, range] | None = None,
        watermarks: Mapping[int, int] | None = None,
    ) -> Checked:
        """Check the output of a query from its first file on, which a fork's savepoint decides.

        Parameters
        ----------
        output
            All rows that the query wrote.
        is_whole
            Whether the query has processed all files, with the epoch without rows after them.
        epochs
            The files of the epoch of each file that is not the only one of its epoch.
        watermarks
            The watermark of the epoch that begins with a file, in milliseconds, where it may be
            after the file before. Spark's file sink skips an epoch that it has committed, if a
            driver is killed before Spark commits it, and Spark then sees no times of this epoch.

        Raises
        ------
        WrongOutputError
            If a row or timer is missing, there twice, or has another value.
        """
        rows = [row for row in output if row["kind"] == "row"]
        timers = [row for row in output if row["kind"] == "timer"]
        for row in output:
            _demand(row["m"] == row["n"], "the second operator counted otherwise", row)
        together = [(epochs or {}).get(f, range(f, f + 1)) for f in range(len(self.files))]
        first, last = self._span_of(rows)
        _demand(first >= 0 and last < len(self.files), "rows of no file", (first, last))
        first, last = together[first].start, together[last].stop - 1
        _demand(not is_whole or last == len(self.files) - 1, "files are missing", last)
        self._check_rows(rows, first, together[: last + 1], watermarks or {})
        self._check_timers(timers, first, together[: last + 1], is_whole=is_whole)
        return Checked(first, last, len(rows), len(timers))

    def _span_of(self, rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Return the first and last file of an output, by the sums that its keys have reached."""
        _demand(bool(rows), "there is no output", None)
        files: set[int] = set()
        for key, each in _by_key(rows).items():
            before = min(each, key=lambda row: row["n"])
            totals = sorted(row["total"] for row in each)
            steps = [b - a for a, b in pairwise(totals)]
            files |= set(steps)
            ends = [*accumulate(counts[key] for counts in self.files)]
            at = next((f for f, end in enumerate(ends) if end >= before["n"]), -1)
            _demand(at >= 0, "a number is higher than there are rows", before)
            files.add(at)
        return min(files), max(files)

    def _check_rows(
        self,
        rows: Sequence[Mapping[str, Any]],
        first: int,
        together: Sequence[range],
        watermarks: Mapping[int, int],
    ) -> None:
        found = _by_key(rows)
        for key in KEYS:
            n = before = 0
            wanted: list[tuple[int, int, int]] = []
            spans: list[tuple[int, int]] = []
            written: list[tuple[int, int]] = []  # the newest file of an epoch, and its entries
            for files in sorted(set(together), key=lambda files: files.start):
                each = [file for file in files for _ in range(self.files[file][key])]
                watermark_ms = watermarks.get(files.start, time_ms(files.start - 1))
                live = sum(
                    count for newest, count in written if time_ms(newest) + TTL_MS > watermark_ms
                )
                if files.start >= first:
                    wanted += [(n + at, file, live) for at, file in enumerate(each, 1)]
                    spans.append((n + 1, n + len(each)))
                else:
                    before += sum(each)
                n += len(each)
                written.append((max(each, default=-1), len(each)))
            seen = _with_files(found.get(key, ()), before, spans)
            _demand(seen == wanted, f"rows of {key}", _difference(seen, wanted))

    def _check_timers(
        self,
        timers: Sequence[Mapping[str, Any]],
        first: int,
        together: Sequence[range],
        *,
        is_whole: bool,
    ) -> None:
        found = _by_key(timers)
        last = len(together) - 1
        # The epoch without rows, in which the newest watermark fires, may not have come yet.
        froms = [time_ms(together[first - 1].start - 1), time_ms(first - 1)] if first else [0]
        tos = [time_ms(last)] if is_whole else [time_ms(together[last].start - 1), time_ms(last)]
        seen = {key: sorted((row["at"], row["n"]) for row in found.get(key, ())) for key in KEYS}
        for from_ms in froms:
            for to_ms in tos:
                wanted = {key: self._timers_of(key, last, from_ms, to_ms) for key in KEYS}
                if seen == wanted:
                    return
        _demand(False, "timers", {key: _difference(seen[key], wanted[key]) for key in KEYS})

    def _timers_of(self, key: str, last: int, from_ms: int, to_ms: int) -> list[tuple[int, int]]:
        set_for = [
            time_ms(file) + AHEAD_MS
            for file, counts in enumerate(self.files[: last + 1])
            if counts[key]
        ]
        return [(at, n) for n, at in enumerate(set_for, 1) if from_ms < at <= to_ms]


def _with_files(
    rows: Sequence[Mapping[str, Any]], before: int, spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return the number, the file and the young entries of each row; files ascend in an epoch."""
    ordered = sorted((row["n"], row["total"], row["live"]) for row in rows)
    totals = [before, *(total for _, total, _ in ordered)]
    files = {
        n: after - ahead
        for (n, _, _), (ahead, after) in zip(ordered, pairwise(totals), strict=True)
    }
    for low, high in spans:
        there = [n for n in range(low, high + 1) if n in files]
        files |= dict(zip(there, sorted(files[n] for n in there), strict=True))
    return [(n, files[n], live) for n, _, live in ordered]


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["key"]].append(row)
    return found


def _difference(seen: list[Any], wanted: list[Any]) -> str:
    missing = [each for each in wanted if each not in seen]
    strange = [each for each in seen if each not in wanted]
    twice = sorted({each for each in seen if seen.count(each) > 1})
    return f"missing {missing[:5]}, not expected {strange[:5]}, there twice {twice[:5]}"


def _demand(holds: bool, what: str, detail: Any) -> None:
    if not holds:
        raise WrongOutputError(f"{what}: {detail}")


def epochs_with_files(location: Path) -> tuple[int, dict[int, range], dict[int, int]]:
    """Return the last file before those of a location, and the epochs of its logs.

    An epoch is the files of each of its files, and its watermark by its first file.

    Parameters
    ----------
    location
        The query's `checkpointLocation`, in which an entry of Spark's source log is a file.
    """
    log = location / "offsets"
    entries = sorted(int(path.name) for path in log.glob("[0-9]*"))
    lines = [(log / str(n)).read_text().split("\n") for n in entries]
    ends = [json.loads(each[2])["logOffset"] for each in lines]
    marks_ms = [json.loads(each[1])["batchWatermarkMs"] for each in lines]
    before = -1
    if entries[0] != 0:
        before = ends.pop(0)
        marks_ms.pop(0)
    epochs = [range(low + 1, high + 1) for low, high in pairwise([before, *ends])]
    watermarks: dict[int, int] = {}
    for files, mark_ms, earlier_ms in zip(epochs, marks_ms, [None, *marks_ms], strict=False):
        seen_ms = time_ms(files.start - 1)
        if files and files.start and mark_ms != seen_ms:
            _demand(mark_ms == earlier_ms, "a watermark that no file has", (files, mark_ms))
            watermarks[files.start] = mark_ms
    return before, {file: files for files in epochs for file in files}, watermarks


def committed_output(directory: Path) -> list[dict[str, Any]]:
    """Read the files that the sink's own log lists; others are leftovers of killed runs."""
    names: dict[str, None] = {}
    for entry in (directory / "_spark_metadata").glob("[0-9]*"):
        for line in entry.read_text().splitlines()[1:]:
            names[Path(json.loads(line)["path"]).name] = None
    return [row for name in names for row in pq.read_table(directory / name).to_pylist()]
