"""What an epoch releases is decided once, also where tasks race and requests come late."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ckpt.errors import CorruptFileError, StateValueError
from pyspark_ckpt.operator.quarantine.releases import (
    BEFORE_ALL,
    KEPT,
    Decision,
    Release,
    ReleaseFiles,
)
from pyspark_ckpt.storage.open import LocalStorage


@pytest.fixture
def files(tmp_path: Path) -> ReleaseFiles:
    files = ReleaseFiles(LocalStorage(tmp_path))
    files.arm(BEFORE_ALL)
    return files


def keys(decision: Decision, uid: str = "op") -> set[bytes]:
    released = decision.releases_of(uid)
    return {key for key in (b"a", b"b", b"c") if key in released}


def release(*given: bytes, uid: str = "op") -> Release:
    return Release(uid=uid, keys=tuple(key.hex() for key in given) or None)


def test_a_request_has_its_effect_in_one_epoch(files: ReleaseFiles) -> None:
    assert keys(files.decide(3)) == set()
    files.request(release(b"a"))
    files.request(release(b"b", uid="other"))
    assert keys(files.decide(3)) == set(), "epoch 3 is decided"
    assert keys(files.decide(4)) == {b"a"}
    assert keys(files.decide(4), "other") == {b"b"}
    files.request(release())
    assert keys(files.decide(4)) == {b"a"}
    assert keys(files.decide(5)) == {b"a", b"b", b"c"}
    assert keys(files.decide(6)) == set()


def of_many(number: int) -> Release:
    """Return a release of 3 MB, of which no two fit into one decision."""
    keys = (f"user-{number * 60_000 + n:011}".encode() for n in range(60_000))
    return Release(uid="op", keys=(*(key.hex() * 3 for key in keys),)[:30_000])


def test_requests_that_are_large_wait_for_each_other(files: ReleaseFiles) -> None:
    wanted = [of_many(number) for number in range(3)]
    for each in wanted:
        files.request(each)
    files.request(release(b"a"))
    found = [files.decide(epoch) for epoch in range(5)]
    assert [files.decided(epoch) for epoch in range(5)] == found
    assert sorted(len(each.releases) for each in found) == [0, 0, 1, 1, 2]
    released = [each for decision in found for each in decision.releases]
    assert sorted(released, key=lambda each: each.keys or ()) == sorted(
        [*wanted, release(b"a")], key=lambda each: each.keys or ()
    )


def test_a_request_that_no_decision_could_take_is_refused(files: ReleaseFiles) -> None:
    too_many = Release(uid="op", keys=tuple(f"{n:040x}" for n in range(100_000)))
    with pytest.raises(StateValueError, match=r"100000 keys .* in 2 parts, or give no keys"):
        files.request(too_many)
    assert files.decide(1) == Decision()


def test_no_epoch_decides_before_a_key_is_quarantined(tmp_path: Path) -> None:
    files = ReleaseFiles(LocalStorage(tmp_path))
    files.request(release())
    assert keys(files.decide(0)) == set()
    assert files.decided(0) is None
    files.arm(0)
    files.arm(5)
    assert keys(files.decide(1)) == {b"a", b"b", b"c"}


def test_the_epoch_that_quarantines_the_first_key_releases_nothing_when_it_is_repeated(
    tmp_path: Path,
) -> None:
    files = ReleaseFiles(LocalStorage(tmp_path))
    assert keys(files.decide(4)) == set()
    files.arm(4)
    files.request(release(b"a"))
    assert keys(files.decide(4)) == set()
    assert files.decided(4) is None
    assert keys(files.decide(5)) == {b"a"}


def test_tasks_that_race_decide_the_same(files: ReleaseFiles) -> None:
    for epoch in range(20):
        with ThreadPoolExecutor(8) as pool:
            requests = [pool.submit(files.request, release(b"a")) for _ in range(4)]
            found = [pool.submit(files.decide, epoch) for _ in range(8)]
        assert len({task.result() for task in found}) == 1
        assert all(task.result() for task in requests)


def test_each_timeline_decides_for_itself_and_repeats_no_request(tmp_path: Path) -> None:
    first = ReleaseFiles(LocalStorage(tmp_path), 0)
    first.arm(6)
    first.request(release(b"a"))
    assert keys(first.decide(7)) == {b"a"}
    second = ReleaseFiles(LocalStorage(tmp_path), 1)
    assert keys(second.decide(5)) == set()
    second.request(release(b"b"))
    assert keys(second.decide(7)) == {b"b"}


def test_old_decisions_and_their_requests_are_deleted(files: ReleaseFiles, tmp_path: Path) -> None:
    for epoch in range(3 * KEPT):
        files.request(release(b"a"))
        assert keys(files.decide(epoch)) == {b"a"}
    names = [path.name for path in (tmp_path / "releases").iterdir()]
    assert len(names) <= 2 * KEPT + 5
    assert keys(files.decide(3 * KEPT)) == set(), "no request is repeated"


def test_a_file_of_somebody_else_is_refused(files: ReleaseFiles, tmp_path: Path) -> None:
    bad = tmp_path / "releases" / f"{1:015}-{'0' * 16}.request.json"
    bad.write_text('{"release": {"uid": 3}}')
    with pytest.raises(CorruptFileError, match="delete it"):
        files.decide(0)


class OfAnotherUser(LocalStorage):
    """A storage whose requests this user may not read, while `hidden` names them."""

    hidden = ""

    def read(self, relative: str) -> bytes:
        if self.hidden and self.hidden in relative:
            raise PermissionError(13, "Permission denied", relative)
        return super().read(relative)


def test_a_request_that_may_not_be_read_ends_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits, and the others are carried out, each once."""
    storage = OfAnotherUser(tmp_path)
    files = ReleaseFiles(storage)
    files.arm(BEFORE_ALL)
    storage.hidden = files.request(release(b"a"))
    files.request(release(b"b"))
    assert keys(files.decide(0)) == {b"b"}
    assert "may not read it" in caplog.text
    assert keys(files.decide(1)) == set()
    storage.hidden = ""
    assert keys(files.decide(2)) == {b"a"}
    assert keys(files.decide(3)) == set()


def test_keys_that_are_no_hexadecimal_digits_are_refused(
    files: ReleaseFiles, tmp_path: Path
) -> None:
    """Before the decision is written, which every attempt would read."""
    files.request(Release(uid="op", keys=("zz",)))
    with pytest.raises(CorruptFileError, match="delete it"):
        files.decide(0)
    assert not list((tmp_path / "releases").glob("epoch-*"))
