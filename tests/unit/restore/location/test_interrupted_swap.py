"""The content of a location is swapped, wherever the swap is interrupted."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.location_files import RolledBack, read_rolled_back
from pyspark_ckpt.restore.location.swap import (
    Swap,
    begun_swap,
    finish_restart,
    finish_swap,
    remove_leftovers_of_restarts,
    swap,
)
from pyspark_ckpt.storage.fenced import FencedStorage
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests.faults.leases import ALONE

OLD = {"offsets/0": "old", "state/0/1": "old", "metadata": "old", "only-old": "old"}
NEW = {"offsets/0": "new", "metadata": "new", "only-new/x": "new"}
WANTED = Swap(
    to="chk-1",
    kept="_kept",
    staged="_staged",
    outgoing=("metadata", "offsets", "only-old", "state"),
    incoming=("metadata", "offsets", "only-new"),
)
VOID = (RolledBack("q", 3),)
CLAIMED = 2
"""Operations until nobody takes the swap for void: the marker and the first claim."""
STEPS = CLAIMED + len(WANTED.outgoing) + len(WANTED.incoming) + 2
WITH_VOID = msgspec.structs.replace(WANTED, rolled_back=VOID)
VOID_STEPS = STEPS + 1


class CutOffError(Exception):
    pass


class CutOffStorage(LocalStorage):
    """A storage that stops after a number of operations, before or after the last one."""

    def __init__(self, root: Path, operations: int, *, does_last: bool) -> None:
        super().__init__(root)
        self.left, self.does_last = operations, does_last

    def _cut(self, operation: str, *arguments: object) -> None:
        self.left -= 1
        if self.left > 0 or (self.left == 0 and self.does_last):
            getattr(LocalStorage, operation)(self, *arguments)
        if self.left <= 0:
            raise CutOffError

    def write(self, *arguments: object) -> None:  # type: ignore[override]
        self._cut("write", *arguments)

    def move(self, *arguments: object) -> None:  # type: ignore[override]
        self._cut("move", *arguments)

    def delete(self, *arguments: object) -> None:  # type: ignore[override]
        self._cut("delete", *arguments)

    def delete_directory(self, *arguments: object) -> None:  # type: ignore[override]
        self._cut("delete_directory", *arguments)


def content(root: Path) -> dict[str, str]:
    """Return the files with their texts, without the claims."""
    files = {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file()}
    return {name: p.read_text() for name, p in files.items() if "/_swap-" not in name}


@pytest.fixture
def location(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def fill(location: Path) -> None:
    for directory, files in ((location, OLD), (location / "_staged", NEW)):
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


DONE = {**NEW, **{f"_kept/{name}": text for name, text in OLD.items()}}
DONE_WITH_VOID = {**DONE, "_rolled_back.json": '[{"query_id":"q","after":3}]'}


def test_all_goes_out_and_in(location: Path) -> None:
    swap(LocalStorage(location), WANTED, ALONE)
    assert content(location) == DONE
    assert begun_swap(LocalStorage(location)) is None


@pytest.mark.parametrize("does_last", [False, True])
@pytest.mark.parametrize("operations", range(1, STEPS + 1))
def test_cut_off_at_every_step(location: Path, operations: int, does_last: bool) -> None:
    """Before the marker, nothing changes; after it, the swap is finished once or twice."""
    before = content(location)
    with pytest.raises(CutOffError):
        swap(CutOffStorage(location, operations, does_last=does_last), WANTED, ALONE)
    begun = begun_swap(LocalStorage(location))
    if begun is None:
        assert content(location) in (before, DONE)
        assert (content(location) == DONE) == (operations == STEPS)
        return
    assert begun == WANTED
    with pytest.raises(CutOffError):
        finish_swap(CutOffStorage(location, 2, does_last=True), begun)
    begun = begun_swap(LocalStorage(location))
    if begun is not None:
        finish_swap(LocalStorage(location), begun)
    assert content(location) == DONE


@pytest.mark.parametrize("does_last", [False, True])
@pytest.mark.parametrize("operations", range(2, VOID_STEPS + 1))
def test_what_is_void_is_known_wherever_it_is_cut_off(
    location: Path, operations: int, does_last: bool
) -> None:
    """This holds also if an older list comes in with the rest."""
    (location / "_staged" / "_rolled_back.json").write_text("[]")
    wanted = msgspec.structs.replace(WITH_VOID, incoming=("_rolled_back.json", *WANTED.incoming))
    with suppress(CutOffError):
        swap(CutOffStorage(location, operations, does_last=does_last), wanted, ALONE)
    begun = begun_swap(LocalStorage(location))
    if begun is not None:
        finish_swap(LocalStorage(location), begun)
    if begun is not None or operations == VOID_STEPS:
        assert content(location) == DONE_WITH_VOID
        assert read_rolled_back(LocalStorage(location)) == VOID


def test_there_are_no_more_steps_than_were_cut_off(location: Path) -> None:
    swap(CutOffStorage(location, STEPS + 1, does_last=True), WANTED, ALONE)
    assert content(location) == DONE


RESTARTS = msgspec.structs.replace(WANTED, restarts=True)


@pytest.mark.parametrize("does_last", [False, True])
@pytest.mark.parametrize("operations", range(1, STEPS + 1))
def test_a_start_finishes_a_restart_that_was_cut_off(
    location: Path, operations: int, does_last: bool
) -> None:
    """The location is the old one or the new one, and never half of both."""
    before = content(location)
    with pytest.raises(CutOffError):
        swap(CutOffStorage(location, operations, does_last=does_last), RESTARTS, ALONE)
    finish_restart(LocalStorage(location))
    assert begun_swap(LocalStorage(location)) is None
    is_old = operations < CLAIMED or (operations == CLAIMED and not does_last)
    assert content(location) == (before if is_old else DONE)


def test_a_start_does_not_finish_a_rollback(location: Path) -> None:
    before = content(location)
    with pytest.raises(CutOffError):
        swap(CutOffStorage(location, 2, does_last=True), WANTED, ALONE)
    finish_restart(LocalStorage(location))
    assert begun_swap(LocalStorage(location)) is not None
    assert content(location).keys() - {"_rollback"} == before.keys()


def test_leftovers_of_restarts_are_removed(location: Path) -> None:
    before = content(location)
    for name in ("_before_restart-1", "_restarting-2"):
        (location / name / "state").mkdir(parents=True)
        (location / name / "state" / "0").touch()
    remove_leftovers_of_restarts(FencedStorage(LocalStorage(location), ALONE))
    assert content(location) == before


def test_a_changed_marker_is_refused(location: Path) -> None:
    (location / "_rollback").write_text("{}")
    with pytest.raises(CorruptFileError, match="by hand"):
        begun_swap(LocalStorage(location))


class CutOffObjects(LocalStorage):
    """As an object store: directories are moved file by file, and each request may be the last."""

    moves_at_once = False

    def __init__(self, root: Path, requests: int, *, does_last: bool) -> None:
        super().__init__(root)
        self.left, self.does_last = requests, does_last

    def _cut(self, request: str, *arguments: object) -> object:
        self.left -= 1
        done = None
        if self.left > 0 or (self.left == 0 and self.does_last):
            done = getattr(LocalStorage, request)(self, *arguments)
        if self.left <= 0:
            raise CutOffError
        return done

    def write(self, *arguments: object) -> object:  # type: ignore[override]
        return self._cut("write", *arguments)

    def delete(self, *arguments: object) -> None:  # type: ignore[override]
        self._cut("delete", *arguments)

    def delete_directory(self, *arguments: object) -> None:  # type: ignore[override]
        self._cut("delete_directory", *arguments)

    def move(self, relative: str, target: str) -> None:
        Storage.move(self, relative, target)


MOST_REQUESTS = 62
DONE_BY_OBJECTS = {**DONE_WITH_VOID, "_kept/_all_moved_out": "all of it is here\n"}


@pytest.mark.slow
@pytest.mark.parametrize("does_last", [False, True])
def test_without_renames_it_is_cut_off_at_every_request(tmp_path: Path, does_last: bool) -> None:
    """And the swap that finishes it is cut off too."""
    for first in range(1, MOST_REQUESTS):
        for second in (1, 2, 3, 5, 8, 13, 21, 34):
            directory = tmp_path / f"{first}-{second}"
            fill(directory)
            before = content(directory)
            with suppress(CutOffError):
                swap(CutOffObjects(directory, first, does_last=does_last), WITH_VOID, ALONE)
            begun = begun_swap(LocalStorage(directory))
            if begun is None:
                assert content(directory) in (before, DONE_BY_OBJECTS)
                break
            with suppress(CutOffError):
                finish_swap(CutOffObjects(directory, second, does_last=does_last), begun)
            begun = begun_swap(LocalStorage(directory))
            was_finished = begun is None
            if begun is not None:
                finish_swap(CutOffObjects(directory, MOST_REQUESTS, does_last=True), begun)
            assert content(directory) == DONE_BY_OBJECTS
            if was_finished:
                break
