"""The oracle of the torture finds what is lost, repeated or wrong."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.torture.figures import Figures, add_run, table_of
from tests.torture.life import FATAL
from tests.torture.oracle import KEYS, Input, WrongOutputError, epochs_with_files, time_ms
from tests.torture.screen import Screen

FILES = 12
Output = list[dict[str, Any]]


@pytest.fixture
def given(tmp_path: Path) -> Input:
    made = Input(tmp_path, random.Random(5))
    for _ in range(FILES):
        made.add()
    return made


def output_of(given: Input, first: int, fired_after: int, fired_to: int) -> Output:
    """Process the files one by one, as a query does; return what it emits from the first on."""
    n: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    fired: dict[str, int] = defaultdict(int)
    output = []
    for file, counts in enumerate(given.files):
        for key in KEYS:
            live = sum(each[key] for each in given.files[max(0, file - 3) : file])
            for _ in range(counts[key]):
                n[key] += 1
                total[key] += file
                row = {"key": key, "kind": "row", "n": n[key], "m": n[key]}
                if file >= first:
                    output.append({**row, "total": total[key], "live": live, "at": 0})
            at_ms = time_ms(file) + 15_000
            if counts[key] and at_ms <= time_ms(fired_to):
                fired[key] += 1
                row = {"key": key, "kind": "timer", "n": fired[key], "m": fired[key]}
                if at_ms > time_ms(fired_after):
                    output.append({**row, "total": 0, "live": 0, "at": at_ms})
    return output


def test_an_exact_output_passes(given: Input) -> None:
    output = output_of(given, 0, -1, FILES - 1)
    random.Random(1).shuffle(output)
    checked = given.check(output, is_whole=True)
    assert (checked.first, checked.last) == (0, FILES - 1)
    assert checked.rows == sum(sum(counts.values()) for counts in given.files)
    assert checked.timers > 20


@pytest.mark.parametrize("fired_after", [3, 4])
def test_a_fork_begins_where_its_savepoint_was(given: Input, fired_after: int) -> None:
    output = output_of(given, 5, fired_after, FILES - 1)
    assert given.check(output, is_whole=True).first == 5


def test_the_newest_timers_may_not_have_fired_in_a_query_that_was_killed(given: Input) -> None:
    output = output_of(given, 0, -1, FILES - 2)
    given.check(output, is_whole=False)
    with pytest.raises(WrongOutputError, match="timers"):
        given.check(output, is_whole=True)


@pytest.mark.parametrize("kind", ["row", "timer"])
@pytest.mark.parametrize("damage", ["lost", "twice", "total", "live", "at", "m"])
def test_each_damage_is_found(given: Input, kind: str, damage: str) -> None:
    whole = output_of(given, 0, -1, FILES - 1)
    places = [number for number, row in enumerate(whole) if row["kind"] == kind]
    if damage in ("total", "live") and kind == "timer":
        return
    for place in random.Random(2).sample(places, 10):
        output = [dict(row) for row in whole]
        if damage == "lost":
            del output[place]
        elif damage == "twice":
            output.append(output[place])
        elif (kind, damage) != ("row", "at"):
            output[place][damage] += 1
        else:
            continue
        with pytest.raises(WrongOutputError):
            given.check(output, is_whole=True)


def output_with_two_files_in_an_epoch(given: Input, both: range, order: list[int]) -> Output:
    """Process the files, two of them in one epoch in their own order."""
    n: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    output = [row for row in output_of(given, 0, -1, FILES - 1) if row["kind"] == "timer"]
    epochs = [[f] for f in range(both.start)] + [order] + [[f] for f in range(both.stop, FILES)]
    for key in KEYS:
        entries: list[tuple[int, int]] = []  # the newest row of the key in its epoch, and how many
        watermark = -1
        for files in epochs:
            rows = [f for f in files for _ in range(given.files[f][key])]
            live = sum(n for at, n in entries if time_ms(at) + 25_000 > time_ms(watermark))
            for file in rows:
                n[key] += 1
                total[key] += file
                row = {"key": key, "kind": "row", "n": n[key], "m": n[key]}
                output.append({**row, "total": total[key], "live": live, "at": 0})
            entries.append((max(rows, default=-10), len(rows)))
            watermark = max(files)
    return output


@pytest.mark.parametrize("order", [[4, 5], [5, 4]])
def test_two_files_in_an_epoch_are_exact_in_either_order(given: Input, order: list[int]) -> None:
    both = range(4, 6)
    output = output_with_two_files_in_an_epoch(given, both, order)
    epochs = {4: both, 5: both}
    assert given.check(output, is_whole=True, epochs=epochs).last == FILES - 1
    with pytest.raises(WrongOutputError):
        given.check(output, is_whole=True)
    rows = [number for number, row in enumerate(output) if row["kind"] == "row"]
    for place in random.Random(3).sample(rows, 20):
        for damaged in (
            [*output[:place], *output[place + 1 :]],
            [*output, output[place]],
            [*output[:place], {**output[place], "live": 99}, *output[place + 1 :]],
            [
                *output[:place],
                {**output[place], "total": output[place]["total"] + 7},
                *output[place + 1 :],
            ],
        ):
            with pytest.raises(WrongOutputError):
                given.check(damaged, is_whole=True, epochs=epochs)


def test_the_epochs_of_files_are_read_from_sparks_log(tmp_path: Path) -> None:
    log = tmp_path / "offsets"
    log.mkdir()

    def note(epoch: int, end: int, watermark_ms: int) -> None:
        metadata = f'{{"batchWatermarkMs":{watermark_ms}}}'
        (log / str(epoch)).write_text(f'v1\n{metadata}\n{{"logOffset":{end}}}')

    note(0, 0, 0)
    note(1, 2, time_ms(0))
    note(2, 2, time_ms(2))  # an epoch without rows
    note(10, 3, time_ms(2))
    note(11, 4, time_ms(2))  # Spark has not seen the times of the epoch before
    found = {0: range(1), 1: range(1, 3), 2: range(1, 3), 3: range(3, 4), 4: range(4, 5)}
    assert epochs_with_files(tmp_path) == (-1, found, {4: time_ms(2)})
    (log / "0").unlink()  # a fork's location begins with its savepoint's epoch
    assert epochs_with_files(tmp_path) == (
        2, {3: range(3, 4), 4: range(4, 5)}, {4: time_ms(2)},
    )  # fmt: skip
    note(11, 4, time_ms(1))
    with pytest.raises(WrongOutputError, match="a watermark that no file has"):
        epochs_with_files(tmp_path)


def test_a_watermark_that_stood_still_lets_entries_live_longer(given: Input) -> None:
    """Of the epoch of file 6 Spark has seen no times, so file 7 has the watermark before."""
    output = output_of(given, 0, -1, FILES - 1)
    behind = {7: time_ms(5)}
    totals: dict[str, int] = defaultdict(int)
    for row in output:
        if row["kind"] == "row":
            file, totals[row["key"]] = row["total"] - totals[row["key"]], row["total"]
            row["live"] += given.files[3][row["key"]] if file == 7 else 0
    assert given.check(output, is_whole=True, watermarks=behind).last == FILES - 1
    with pytest.raises(WrongOutputError):
        given.check(output, is_whole=True)


def test_files_that_are_missing_at_the_end_are_found(given: Input) -> None:
    output = output_of(given, 0, -1, FILES - 1)
    given.add()
    with pytest.raises(WrongOutputError, match="files are missing"):
        given.check(output, is_whole=True)


def test_the_screen_shows_counts_and_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert Figures(7).faults.total() == 0
    screen = Screen(7, 20)
    with screen:
        screen.state["query"] = 3
        for _ in range(10):
            screen.count("driver killed")
        with screen.console.capture() as captured:
            screen.console.print(screen._shown())
    assert "10 faults; query 3" in capsys.readouterr().out
    assert "driver killed" in captured.get()
    assert "SEED=7" in captured.get()


def test_runs_add_up_in_one_file(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    counted = {"queries": 1, "forks": 0, "rows": 1500, "timers": 7, "seconds": 60.0}

    def run(seed: int, **faults: int) -> dict[str, Any]:
        kills = faults.get("driver killed", 0)
        total = sum(faults.values())
        figures = {"faults": faults, "total": total, "kills": kills, "pauses": 0, **counted}
        return {"seed": seed, "commit": "abc1234", **figures}

    add_run(run(1, **{"driver killed": 2}), results)
    add_run(run(2, **{"driver killed": 1, "disk full": 1}), results)
    add_run(run(2, **{"driver killed": 1, "disk full": 3}), results)
    table = table_of(json.loads(results.read_text()))
    assert "| all | | 6 | 3 | 0 | 2 | 0 | 3,000 | 14 | 2 |" in table
    assert "disk full 3, driver killed 3" in table


@pytest.mark.parametrize(
    ("line", "is_fatal"),
    [
        ("AssertionError: key a has 2 after 0", True),
        ("pyspark_ckpt.errors.CorruptFileError: handle-3 has another digest", True),
        ("java.lang.AssertionError: assertion failed: BlockManager re-registration", False),
        ("ERROR TaskSchedulerImpl: Lost executor 2", False),
    ],
)
def test_an_error_that_no_fault_explains_ends_a_torture(line: str, *, is_fatal: bool) -> None:
    assert bool(FATAL.search(f"before\n{line}\nafter")) is is_fatal
