"""Two drivers never swap the content of a location together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError, FencedError
from pyspark_ckpt.formats.layout import ROLLBACK_MARKER, ROLLED_BACK_NAME
from pyspark_ckpt.formats.location_files import RolledBack, read_rolled_back
from pyspark_ckpt.restarting.staging import put_back
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.restore.location.swap import (
    Swap,
    begun_swap,
    finish_restart,
    finish_swap,
    is_note,
    is_untouched,
    remove_leftovers_of_restarts,
    swap,
)
from pyspark_ckpt.spark.log import OffsetsEntry
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.memory import MemoryStorage
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.faults.epochs import OPERATORS
from tests.faults.leases import ALONE, LeaseOf
from tests.unit.restore.location.paused import Paused, pausing


def entry(parallelism: int, offset: int, reserved_by: str | None = None) -> bytes:
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}}
    plain = OffsetsEntry(metadata, (str(offset),))
    return plain.with_conf(parallelism, reserved_by).text().encode()


OLD = {
    "commits/9": b"old",
    "offsets/8": entry(2, 80),
    "offsets/9": entry(2, 90),
    "state/0/9.delta": b"old",
}
NEW = {
    "commits/9": b"newer",
    "offsets/8": entry(16, 80),
    "offsets/9": entry(16, 90),
    "offsets/10": entry(16, 90, "_before_restart-1"),
    "state/0/9.snapshot": b"newer",
}
"""The restart has begun the next epoch."""
NAMES = ("commits", "offsets", "state")
RESTART = Swap(
    to="16 subtasks",
    kept="_before_restart-1",
    staged="_restarting-1",
    outgoing=("state",),
    incoming=("state",),
    restarts=True,
    exchanged=("commits/9", "offsets/8", "offsets/9"),
    epoch=9,
)
ROLLBACK = Swap(
    to="chk-1",
    kept="_before_rollback-1",
    staged="_rolling_back-1",
    outgoing=NAMES,
    incoming=NAMES,
)


PausedObjects = pausing(MemoryStorage, "write", "copy_within", "delete")
PausedDisk = pausing(LocalStorage, "write", "replace", "move", "delete")


def paused_and_other(kind: str, directory: Path, at: int) -> tuple[Storage, Storage, Paused]:
    """Return a filled location as a paused driver and as another one see it."""
    paused = Paused(at)
    first: Storage
    other: Storage
    if kind == "objects":
        name = f"{secrets.token_hex(8)}/location"
        first, other = PausedObjects(name), MemoryStorage(name)
    else:
        first, other = PausedDisk(directory), LocalStorage(directory)
    fill(other)
    first.paused = paused  # type: ignore[attr-defined]
    return first, other, paused


def fill(location: Storage, staged: str = "_restarting-1") -> None:
    location.write("metadata", [b'{"id":"q"}'])
    for name, text in OLD.items():
        location.write(name, [text])
    for name, text in NEW.items():
        location.write(f"{staged}/{name}", [text])


def content(location: Storage) -> dict[str, bytes]:
    paths = [path for name in NAMES for path in location.files_below(name)]
    return {path: location.read(path) for path in paths}


kinds = pytest.mark.parametrize("kind", ["objects", "disk"])
MOST_STEPS = 26


@kinds
def test_a_start_that_finds_a_restart_under_way_takes_it_over(kind: str, tmp_path: Path) -> None:
    """The driver that was paused moves nothing of the new content away."""
    taken_over = 0
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)
        paused.meanwhile = lambda other=other: finish_restart(other)  # type: ignore[misc]
        try:
            swap(first, RESTART, ALONE)
        except FencedError:
            taken_over += 1
            is_void = at == 2
            assert content(other) == (OLD if is_void else NEW)
        else:
            assert content(other) == NEW
        assert begun_swap(other) is None
    assert taken_over > 5


@kinds
def test_a_slow_start_stops_once_another_one_has_taken_over(kind: str, tmp_path: Path) -> None:
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)
        other.write(ROLLBACK_MARKER, [msgspec.json.encode(RESTART)])
        other.write("_before_restart-1/_swap-1", [b"a driver that was killed"])

        def finish(other: Storage = other) -> None:
            finish_restart(other)
            remove_leftovers_of_restarts(FencedStorage(other, ALONE))  # also the claims

        paused.meanwhile = finish
        with suppress(FencedError):
            finish_restart(first)
        assert content(other) == NEW
        assert begun_swap(other) is None


@kinds
def test_a_restart_does_nothing_to_a_driver_that_has_started_meanwhile(
    kind: str, tmp_path: Path
) -> None:
    """The driver was paused before it wrote the marker, or right after it."""
    for at in (1, 2):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)
        started = []

        def start(other: Storage = other, started: list[int] = started) -> None:
            finish_restart(other)
            started.append(1)

        def check(started: list[int] = started) -> None:
            if started:
                raise FencedError("another driver has started")

        paused.meanwhile = start
        with pytest.raises(FencedError):
            swap(first, RESTART, LeaseOf(check))
        assert content(other) == OLD
        assert begun_swap(other) is None


def begin(location: Storage, epoch: int) -> bool:
    """Begin an epoch as Spark does, which does not look whether there are later ones."""
    try:
        location.write(f"offsets/{epoch}", [entry(2, 1000 + epoch)])
    except FileExistsError:
        return False
    return True


@pytest.mark.parametrize("is_killed", [False, True], ids=["lives", "killed"])
@kinds
def test_an_epoch_that_another_driver_begins_during_a_restart_is_not_lost(
    kind: str, is_killed: bool, tmp_path: Path
) -> None:
    """It begins the next epoch before the restart has begun it, or not at all."""
    begun = 0
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)
        began: list[bool] = []

        def come(other: Storage = other, began: list[bool] = began) -> None:
            began.append(begin(other, 10))
            if is_killed:
                raise KeyboardInterrupt

        paused.meanwhile = come
        try:
            swap(first, RESTART, ALONE)
        except (FencedError, KeyboardInterrupt):
            finish_restart(other)
        assert begun_swap(other) is None
        if any(began):
            begun += 1
            assert content(other) == {**OLD, "offsets/10": entry(2, 1010)}
        else:
            assert content(other) in (OLD, NEW)
    assert begun == 3  # before the marker, the claim, and the epoch itself


@pytest.mark.parametrize("later", [10, 11])
@kinds
def test_a_restart_that_has_begun_is_not_void_whatever_comes(
    kind: str, later: int, tmp_path: Path
) -> None:
    """A driver may write an entry where Spark's own exclusion fails, or run the next epoch."""
    came = 0
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)

        def come(other: Storage = other, paused: Paused = paused) -> None:
            if other.exists(f"{RESTART.kept}/_reserved"):
                other.replace(f"offsets/{later}", entry(2, 1000 + later))
            raise KeyboardInterrupt

        paused.meanwhile = come
        with suppress(KeyboardInterrupt):
            swap(first, RESTART, ALONE)
        finish_restart(other)
        assert begun_swap(other) is None
        found = content(other)
        if found not in (OLD, NEW):
            came += 1
            assert found == {**NEW, f"offsets/{later}": entry(2, 1000 + later)}
    assert came > 5


@kinds
def test_a_slow_driver_leaves_the_epochs_of_the_run_that_follows(kind: str, tmp_path: Path) -> None:
    """Another driver finishes the restart and runs on, while the first one is paused."""
    for at in range(3, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)
        wanted = {**NEW, "commits/10": b"10", "offsets/11": entry(16, 1011)}

        def run(other: Storage = other) -> None:
            finish_restart(other)
            other.write("commits/10", [b"10"])
            other.write("offsets/11", [entry(16, 1011)])

        paused.meanwhile = run
        with suppress(FencedError):
            swap(first, RESTART, ALONE)
        assert begun_swap(other) is None
        assert content(other) in (NEW, wanted)


@pytest.mark.parametrize("epoch", [8, 9])
def test_a_driver_that_is_late_by_epochs_begins_none_again(epoch: int, tmp_path: Path) -> None:
    """The entries of the last epochs are never away."""
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other("disk", tmp_path / str(at), at)
        began: list[bool] = []
        paused.meanwhile = lambda other=other, began=began: began.append(begin(other, epoch))  # type: ignore[misc]
        swap(first, RESTART, ALONE)
        assert not any(began)
        assert content(other) == NEW


@kinds
def test_a_restart_is_void_if_other_drivers_are_many_epochs_further(
    kind: str, tmp_path: Path
) -> None:
    """Spark has deleted the entry of the epoch after the last one since then."""
    _, location, _ = paused_and_other(kind, tmp_path, 0)
    begin(location, 120)
    with pytest.raises(FencedError, match="has begun an epoch after epoch 9"):
        swap(location, RESTART, ALONE)
    assert content(location) == {**OLD, "offsets/120": entry(2, 1120)}
    assert begun_swap(location) is None


@pytest.mark.parametrize("wanted", [RESTART, ROLLBACK], ids=["restart", "rollback"])
@kinds
def test_new_content_that_somebody_has_deleted_is_not_taken_for_moved(
    kind: str, wanted: Swap, tmp_path: Path
) -> None:
    """The marker and what was moved out stay, for whoever puts it back."""
    for at in range(3, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)
        if wanted is ROLLBACK:
            for name, text in NEW.items():
                other.write(f"{wanted.staged}/{name}", [text])
        paused.meanwhile = lambda other=other: other.delete_directory(wanted.staged)  # type: ignore[misc]
        try:
            swap(first, wanted, ALONE)
        except (CorruptFileError, OSError):  # the second within the move of a directory
            assert other.exists("_rollback")
            assert other.files_below(wanted.kept)
        else:
            assert content(other) == NEW


@kinds
def test_a_failed_step_leaves_an_swap_that_can_be_finished_and_undone(
    kind: str, tmp_path: Path
) -> None:
    for at in range(3, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)

        def fails() -> None:
            raise OSError("the storage is away")

        paused.meanwhile = fails
        try:
            swap(first, RESTART, ALONE)
        except OSError:
            finished = finish_restart(other)
            assert finished is not None
            assert content(other) == NEW
            put_back(other, finished, ALONE)
            (kept,) = {name for name in other.list() if name.startswith("_before_restart-")} - {
                finished.kept
            }
            assert content(other) == {**OLD, "offsets/10": entry(2, 90, kept)}
            assert begun_swap(other) is None


def test_a_rollback_that_nobody_has_claimed_is_finished() -> None:
    location = MemoryStorage(f"{secrets.token_hex(8)}/location")
    fill(location, ROLLBACK.staged)
    location.write(ROLLBACK_MARKER, [msgspec.json.encode(ROLLBACK)])
    assert is_untouched(location, ROLLBACK)
    assert finish_swap(location, ROLLBACK)
    assert not is_untouched(location, ROLLBACK)
    assert content(location) == NEW


@pytest.mark.parametrize(
    ("wanted", "was_void"), [(RESTART, False), (RESTART, True), (ROLLBACK, True)]
)
def test_an_swap_that_is_void_is_not_done(wanted: Swap, was_void: bool) -> None:
    """Other drivers may have run for days since its driver wrote the marker."""
    location = MemoryStorage(f"{secrets.token_hex(8)}/location")
    fill(location, wanted.staged)
    location.write(ROLLBACK_MARKER, [msgspec.json.encode(wanted)])
    if was_void:  # and who made it void was killed before it deleted the marker
        location.write(f"{wanted.kept}/_swap-1", [b"void\n"])
    assert not finish_swap(location, wanted)
    assert content(location) == OLD
    assert begun_swap(location) is None


@pytest.mark.parametrize("wanted", [RESTART, ROLLBACK], ids=["restart", "rollback"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["lives", "killed"])
def test_a_directory_that_comes_while_it_is_swapped_is_set_aside(
    wanted: Swap, is_killed: bool, tmp_path: Path
) -> None:
    """A task of a driver that was taken over makes the directory of its state store again."""
    came = 0
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other("disk", tmp_path / str(at), at)
        if wanted is ROLLBACK:
            for name, text in NEW.items():
                other.write(f"{wanted.staged}/{name}", [text])

        def write(other: Storage = other) -> None:
            nonlocal came
            if not other.list("state"):
                other.write("state/0/10.delta", [b"late"])
                came += 1
            if is_killed:
                raise KeyboardInterrupt

        paused.meanwhile = write
        with suppress(KeyboardInterrupt):
            swap(first, wanted, ALONE)
        begun = begun_swap(other)
        if begun is not None:
            finish_swap(other, begun)
        assert begun_swap(other) is None
        assert content(other) in (OLD, NEW)
        kept = set(other.list(wanted.kept))
        assert {name for name in kept if not is_note(name)} <= {*NAMES}
    assert came


class Steps:
    """A driver in which other things happen before some of its steps."""

    def __init__(self, happens: dict[int, Callable[[], object]]) -> None:
        self.made = 0
        self.happens = happens

    def step(self) -> None:
        self.made += 1
        self.happens.get(self.made, bool)()


@pytest.mark.parametrize("wanted", [RESTART, ROLLBACK], ids=["restart", "rollback"])
def test_a_slow_driver_sets_nothing_aside_that_another_one_has_moved_in(
    wanted: Swap, tmp_path: Path
) -> None:
    """It is paused before the move of a directory that came, until another driver has ended."""
    taken_over = 0
    for late_at, at in combinations(range(1, MOST_STEPS), 2):
        first, other, _ = paused_and_other("disk", tmp_path / f"{late_at}-{at}", 0)
        if wanted is ROLLBACK:
            for name, text in NEW.items():
                other.write(f"{wanted.staged}/{name}", [text])

        def come(other: Storage = other) -> None:
            if not other.list("state"):
                other.write("state/0/10.delta", [b"late"])

        def finish(other: Storage = other) -> None:
            begun = begun_swap(other)
            if begun is not None:
                finish_swap(other, begun)

        first.paused = Steps({late_at: come, at: finish})  # type: ignore[attr-defined]
        try:
            swap(first, wanted, ALONE)
        except FencedError:
            taken_over += 1
        assert begun_swap(other) is None
        is_void = wanted.restarts and at == 2  # it was not claimed yet
        assert content(other) == (OLD if is_void else NEW)
    assert taken_over > 20


@pytest.mark.parametrize("with_late", [False, True], ids=["nothing late", "late directory"])
def test_a_move_in_of_a_driver_with_a_lower_claim_is_not_undone(
    with_late: bool,
    tmp_path: Path,
) -> None:
    """It looked at the claims before this driver claimed, and moves at any of its steps."""
    moved = 0
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other("disk", tmp_path / str(at), at)
        other.write(ROLLBACK_MARKER, [msgspec.json.encode(RESTART)])
        other.write("_before_restart-1/_swap-1", [b"a driver with a lower claim"])
        other.move("state", "_before_restart-1/state")
        if with_late:
            (tmp_path / str(at) / "state").mkdir()  # of a task, still empty

        def move_in(at: int = at) -> None:
            nonlocal moved
            with suppress(OSError):  # it is done, or there is something at the place
                (tmp_path / str(at) / "_restarting-1/state").rename(tmp_path / str(at) / "state")
                moved += 1

        paused.meanwhile = move_in
        try:
            finish_restart(first)
        except FileExistsError:
            finish_restart(other)
        assert content(other) == NEW
        assert begun_swap(other) is None
    assert moved > 3


FIRST_VOID = (RolledBack("q", 7),)
LATER_VOID = (*FIRST_VOID, RolledBack("q2", 9))


@kinds
def test_a_slow_rollback_leaves_the_void_epochs_of_a_later_one(kind: str, tmp_path: Path) -> None:
    """Another driver finished it since then, and rolled the location back once more."""
    taken_over = 0
    for at in range(1, MOST_STEPS):
        first, other, paused = paused_and_other(kind, tmp_path / str(at), at)
        for name, text in NEW.items():
            other.write(f"{ROLLBACK.staged}/{name}", [text])
            other.write(f"_rolling_back-2/{name}", [text])
        wanted = msgspec.structs.replace(ROLLBACK, rolled_back=FIRST_VOID)
        later = msgspec.structs.replace(
            ROLLBACK,
            kept="_before_rollback-2",
            staged="_rolling_back-2",
            outgoing=(*NAMES, ROLLED_BACK_NAME),
            rolled_back=LATER_VOID,
        )

        did_later: list[int] = []

        def roll_back(
            other: Storage = other, later: Swap = later, did_later: list[int] = did_later
        ) -> None:
            begun = begun_swap(other)
            if begun is not None and finish_swap(other, begun):
                swap(other, later, ALONE)
                did_later.append(1)

        paused.meanwhile = roll_back
        try:
            swap(first, wanted, ALONE)
        except FencedError:
            taken_over += 1
            assert did_later
        assert read_rolled_back(other) == (LATER_VOID if did_later else FIRST_VOID)
        assert begun_swap(other) is None
    assert taken_over > 5


def found(location: Storage) -> StartLocation:
    start = StartLocation(location, None, OPERATORS)
    start.look_again()
    return start


@kinds
def test_a_start_sees_that_its_location_was_swapped_meanwhile(kind: str, tmp_path: Path) -> None:
    _, location, _ = paused_and_other(kind, tmp_path, 0)
    start = found(location)
    start.check_unchanged()
    location.write(ROLLBACK_MARKER, [msgspec.json.encode(RESTART)])
    with pytest.raises(FencedError, match="while this one was starting"):
        start.check_unchanged()
    location.delete([ROLLBACK_MARKER])
    start.check_unchanged()
    swap(location, RESTART, ALONE)
    with pytest.raises(FencedError, match="while this one was starting"):
        start.check_unchanged()
    found(location).check_unchanged()
