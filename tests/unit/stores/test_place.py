"""Where a location has its checkpoints: its record, other spellings of it, and who is believed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

import pytest

from pyspark_ckpt.errors import (
    CheckpointNotFoundError,
    CkptError,
    CorruptFileError,
    FencedError,
    RestoreError,
    UnsafePathError,
)
from pyspark_ckpt.formats.location_files import PlaceRecord, read_place, write_place
from pyspark_ckpt.history.places import find_checkpoints_directory
from pyspark_ckpt.restore.location.start_location import StartLocation
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage
from pyspark_ckpt.storage.retrying import RetryingStorage
from pyspark_ckpt.stores.owner import claim_directory
from pyspark_ckpt.stores.place import (
    CheckpointsPlace,
    Decision,
    Directory,
    Facts,
    decide,
    inspect,
    is_same_place,
    recorded_checkpoints,
)
from tests.faults.epochs import OPERATORS
from tests.faults.starts import decided

QUERY = "3f2a1000-0000-4000-8000-000000000000"


def new_location(root: Path) -> LocalStorage:
    location = LocalStorage(root)
    location.write("metadata", [json.dumps({"id": QUERY}).encode()])
    return location


@pytest.fixture
def location(tmp_path: Path) -> LocalStorage:
    return new_location(tmp_path / "loc")


@pytest.fixture(params=["local", "inside", "s3"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What ``spark.ckpt.execution.checkpointing.dir`` is."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3_url')}/checkpoints"
    return str(tmp_path / ("loc/checkpoints" if request.param == "inside" else "checkpoints"))


def started(location: Storage, directory: str | None) -> CheckpointsPlace:
    """Do what a start does to a directory, until Spark begins."""
    place = CheckpointsPlace.of_setting(location, directory)
    if directory is not None:
        claim_directory(location, place.checkpoints(QUERY))
    place.checkpoints(QUERY).write("drivers/1", [b"x"])
    if place.record() != read_place(location)[1]:
        write_place(location, read_place(location)[0] + 1, place.record())
    return place


def decision(
    location: Storage,
    directory: str | None,
    needed: Collection[str] = ("taskowned/segment-1",),
    *,
    has_epochs: bool = True,
) -> Decision:
    place = CheckpointsPlace.of_setting(location, directory)
    return decide(inspect(place, QUERY, lambda: needed, has_epochs=has_epochs))


def spellings(directory: str, tmp_path: Path) -> list[str]:
    if directory.startswith("s3://"):
        return [f"{directory}/", directory.replace("s3://", "s3a://")]
    link = tmp_path / "link"
    link.symlink_to(directory)
    return [f"{directory}/", f"file:{directory}", f"file://{directory}", str(link), f"{link}/"]


def test_the_same_directory_by_any_path_is_the_same(
    location: LocalStorage, directory: str, tmp_path: Path
) -> None:
    started(location, directory)
    for each in (directory, *spellings(directory, tmp_path)):
        assert decision(location, each) == Decision(), each
    for other in (None, f"{directory}-2", f"{directory}/deeper", str(tmp_path / "other")):
        refusal = decision(location, other).refusal
        assert refusal is not None, other
        assert f"with spark.ckpt.execution.checkpointing.dir={open_storage(directory).url}" in (
            refusal
        )


class ByAnotherName(RetryingStorage):
    """A storage that has another name, as one server with two addresses, or a second mount."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.url = f"mount://{inner.url}"

    def child(self, relative: str) -> Storage:
        return ByAnotherName(self._inner.child(relative))


def test_a_directory_with_two_names_is_the_same_and_a_copy_is_not(
    location: LocalStorage, directory: str, s3_url: str
) -> None:
    """A file that is written by one name is seen by the other, or it is not."""
    place = started(location, directory)
    assert place.root is not None
    twin = CheckpointsPlace(location, ByAnotherName(place.root))
    assert is_same_place(twin, place, QUERY)
    other = f"{s3_url}/copy"
    target = open_storage(other).child(QUERY)
    for name in ("owners/1", "drivers/1"):
        target.write(name, [place.checkpoints(QUERY).read(name)])
    refusal = decision(location, other).refusal
    assert refusal is not None
    assert f"move away what is in {target.url}" in refusal
    for each in (target, place.checkpoints(QUERY)):
        assert each.list("owners") == ["1"]


def test_a_directory_that_was_moved_counts_once_it_has_all_files(
    location: LocalStorage, directory: str, tmp_path: Path
) -> None:
    before = started(location, directory).checkpoints(QUERY)
    target = LocalStorage(tmp_path / "new" / QUERY)
    for name in ("owners/1", "drivers/1"):
        target.write(name, [before.read(name)])
        before.delete([name])
    before.write("taskowned/left", [b"x"])
    new = str(tmp_path / "new")
    assert "move" in str(decision(location, new).refusal)  # it is still at the old place, too
    before.delete(["taskowned/left"])
    before.parent().delete_directory(QUERY)
    refusal = str(decision(location, new).refusal)
    assert "lacks 1 files of state (taskowned/segment-1)" in refusal
    target.write("taskowned/segment-1", [b"x"])
    assert decision(location, new) == Decision(is_new=True)
    assert "gone" in str(decision(location, directory).refusal)


def test_a_location_without_an_epoch_is_bound_to_no_directory(
    location: LocalStorage, directory: str
) -> None:
    """But for one that has lost its epochs, and whose directory has a checkpoint."""
    place = started(location, None)
    assert decision(location, directory, has_epochs=False) == Decision(is_new=True)
    place.checkpoints(QUERY).write("chk-1/_author", [b"x"])
    assert decision(location, directory, has_epochs=False).refusal is not None


def test_a_directory_inside_of_a_location_on_a_server_is_recorded_by_its_path_there(
    s3_url: str,
) -> None:
    location = open_storage(f"{s3_url}/loc")
    for directory, inside in ((f"{s3_url}/loc/a/b/", "a/b"), (f"{s3_url}/loc", "")):
        place = CheckpointsPlace.of_setting(location, directory)
        assert place.record() == PlaceRecord(inside=inside)
        moved = CheckpointsPlace.of_record(open_storage(f"{s3_url}/moved"), place.record())
        assert moved.root is not None
        assert moved.root.url == f"{s3_url}/moved/{inside}".rstrip("/")
    beside = CheckpointsPlace.of_setting(location, f"{s3_url}/location-2")
    assert beside.record() == PlaceRecord(directory=f"{s3_url}/location-2")


def test_the_newest_record_counts(location: LocalStorage, directory: str) -> None:
    started(location, None)
    started(location, directory)
    assert sorted(location.list("_checkpoints")) == ["1", "2"]
    assert decision(location, directory) == Decision()
    assert find_checkpoints_directory(location.url).url == (
        CheckpointsPlace.of_setting(location, directory).checkpoints(QUERY).url
    )


def test_of_two_drivers_with_two_directories_one_is_fenced(
    location: LocalStorage, directory: str
) -> None:
    """Each of them finds a location without an epoch, and their directories fence nobody."""
    first, second = (StartLocation(location, each, OPERATORS) for each in (None, directory))
    for each in (first, second):
        decided(each)
    first.claim()
    with pytest.raises(FencedError, match="another driver"):
        second.claim()
    third = StartLocation(location, directory, OPERATORS)
    decided(third)
    third.claim()
    third.check_unchanged(QUERY)
    with pytest.raises(FencedError, match="another driver"):
        first.check_unchanged(QUERY)


@pytest.mark.parametrize("is_moved", [True, False])
def test_readers_follow_a_location_that_is_moved_and_no_copy(
    location: LocalStorage, directory: str, tmp_path: Path, is_moved: bool
) -> None:
    checkpoints = started(location, directory).checkpoints(QUERY)
    other = LocalStorage(tmp_path / "other")
    if is_moved:
        location.root.rename(other.root)
        url = checkpoints.url.replace(f"{location.url}/", f"{other.url}/")
        assert find_checkpoints_directory(other.url).url == url
        return
    shutil.copytree(location.root, other.root)
    with pytest.raises(CheckpointNotFoundError, match="belong to another location"):
        find_checkpoints_directory(other.url)


def test_a_record_is_not_believed_alone(location: LocalStorage, tmp_path: Path) -> None:
    """It may be a stranger's. What it names has to name the location as its owner in turn."""
    victim = new_location(tmp_path / "victim")
    place = started(victim, str(tmp_path / "checkpoints"))
    write_place(location, 1, place.record())
    with pytest.raises(CheckpointNotFoundError, match="belong to another location"):
        recorded_checkpoints(location)
    before = sorted(tmp_path.rglob("*"))
    for directory in (str(tmp_path / "checkpoints"), None, str(tmp_path / "x")):
        with pytest.raises(RestoreError, match="does not own"):
            decision(location, directory)
    assert sorted(tmp_path.rglob("*")) == before
    write_place(location, 2, PlaceRecord(directory=str(tmp_path / "private")))
    (tmp_path / "private" / QUERY / "chk-1").mkdir(parents=True)
    with pytest.raises(CheckpointNotFoundError, match="gone"):
        recorded_checkpoints(location)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", CorruptFileError),
        (b"[1]", CorruptFileError),
        (b'{"directory": 1}', CorruptFileError),
        (b'{"inside": "../victim"}', UnsafePathError),
        (b'{"inside": "/etc"}', UnsafePathError),
        (b'{"inside": "link"}', UnsafePathError),
        (b'{"directory": "ftp://host/x"}', CkptError),
        (b'{"directory": "file:x"}', CkptError),
        (b'{"directory": "relative/path"}', UnsafePathError),
        (b'{"directory": "~/path"}', UnsafePathError),
    ],
)
def test_records_that_are_refused(
    location: LocalStorage, tmp_path: Path, text: bytes, error: type[CkptError]
) -> None:
    (location.root / "link").symlink_to(tmp_path)
    location.write("_checkpoints/1", [text])
    for use in (recorded_checkpoints, lambda each: decision(each, None)):
        with pytest.raises(error):
            use(location)


def test_a_query_id_that_leaves_the_directory_is_refused(
    location: LocalStorage, tmp_path: Path
) -> None:
    write_place(location, 1, PlaceRecord(directory=str(tmp_path / "checkpoints")))
    (location.root / "metadata").write_text('{"id": "../loc"}')
    with pytest.raises(UnsafePathError):
        recorded_checkpoints(location)


def directory_facts(name: str, **known: bool) -> Directory:
    return Directory(
        f"/{name}", f"as {name}", **{"is_elsewhere": True, "has_content": False,
        "has_checkpoints": False, **known},
    )  # fmt: skip


INSIDE = directory_facts("inside", is_elsewhere=False)
INSIDE_FULL = directory_facts("inside", is_elsewhere=False, has_content=True)
A, A_FULL = directory_facts("a"), directory_facts("a", has_content=True)
B, B_FULL = directory_facts("b"), directory_facts("b", has_content=True)


@pytest.mark.parametrize(
    ("requested", "more", "starts", "says"),
    [
        (INSIDE, {}, True, ""),  # killed before it wrote anything, and all state is with Spark
        (INSIDE_FULL, {}, True, ""),
        (A_FULL, {}, True, ""),
        (A_FULL, {"missing": ("shared/x",)}, False, "lacks 1 files of state (shared/x)"),
        (A_FULL, {"missing": ("x",), "default": INSIDE_FULL}, False, "into /a"),
        (A, {"default": INSIDE_FULL}, False, "start it as inside"),
        (A, {"has_token": True}, False, "outside of it"),
        (INSIDE, {"has_token": True}, False, "outside of it"),
        (INSIDE, {"missing": ("x",)}, False, "lacks"),
        (INSIDE, {"recorded": INSIDE, "is_same": True}, True, ""),
        (INSIDE, {"recorded": INSIDE, "is_same": True, "missing": ("x",)}, False, "gone"),
        (A, {"recorded": A, "is_same": True}, False, "needs no file of them"),
        (A, {"recorded": A, "is_same": True, "missing": ("x",)}, False, "savepoint"),
        (A, {"recorded": A, "is_same": True, "has_epochs": False}, True, ""),
        (A_FULL, {"recorded": A_FULL, "is_same": True}, True, ""),
        (B, {"recorded": A_FULL}, False, "move /a to /b"),
        (B_FULL, {"recorded": A_FULL}, False, "move away what is in /b"),
        (B_FULL, {"recorded": A}, True, ""),
        (B_FULL, {"recorded": A, "missing": ("x",)}, False, "/b lacks 1 files"),
        (B, {"recorded": A}, False, "which is gone"),
        (B, {"recorded": A_FULL, "has_epochs": False}, True, ""),
    ],
)  # fmt: skip
def test_what_is_decided(
    requested: Directory, more: dict[str, object], starts: bool, says: str
) -> None:
    facts = Facts(**{"location": "/loc", "has_epochs": True, "requested": requested, **more})
    decided = decide(facts)
    assert (decided.refusal is None) is starts
    assert says.lower() in str(decided.refusal).lower()
    assert decided.is_new == (starts and not facts.is_same)
