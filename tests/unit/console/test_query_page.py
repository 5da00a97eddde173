"""The page of a query: links to where it came from, and the command to go back."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.console import server
from pyspark_ckpt.console.data.places import find_places, key_of
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.formats.metadata import CheckpointMetadata, Origin
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.formats.origin import ORIGIN_NAME
from pyspark_ckpt.history.run_log import RunLog, RunStarted
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.unit.console.made_operator import operator

LOCAL = "http://127.0.0.1:8270"
DIRECTORY = "some where"
SAVEPOINT = "savepoint-3f2a10-0123456789ab"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def root(tmp_path: Path, snapshot: CheckpointMetadata) -> LocalStorage:
    """A query of three checkpoints, with a savepoint and two forks."""
    found = LocalStorage(tmp_path / DIRECTORY)
    metadata = msgspec.structs.replace(
        snapshot, query_id="first", query_name=HOSTILE, source_logs=(), offsets_entry="",
        operators=(operator(50, 50, parallelism=2),), root="..",
    )  # fmt: skip
    original = found.child("original/pyspark_ckpt")
    store = CompletedCheckpoints(original)
    for number in (1, 2, 3):
        store.add(
            number,
            msgspec.structs.replace(
                metadata, kind=CheckpointKind.CHECKPOINT, checkpoint_id=number, epoch=number
            ),
        )
    _start(original, "first", HOSTILE)
    found.write(f"{SAVEPOINT}/_metadata", [encode_metadata(metadata)])
    of_savepoint = Origin(
        path=found.url_of(SAVEPOINT), kind=CheckpointKind.SAVEPOINT, checkpoint_id=None,
        query_id="first", epoch=3, operators=("op",),
    )  # fmt: skip
    of_checkpoint = msgspec.structs.replace(
        of_savepoint, path=original.url_of("chk-2"), kind=CheckpointKind.CHECKPOINT, checkpoint_id=2
    )
    for name, origin in (("fork", of_savepoint), ("other", of_checkpoint)):
        storage = found.child(f"{name}/pyspark_ckpt")
        storage.write(ORIGIN_NAME, [msgspec.json.encode(origin)])
        _start(storage, name, name)
    return found


def _start(storage: LocalStorage, query_id: str, name: str) -> None:
    RunLog(storage).write(RunStarted(run_id=query_id, at_ms=1, query_id=query_id, query_name=name))


def page(root: LocalStorage, address: str) -> str:
    answer = make_app(root).test_client().get(address, base_url=LOCAL)
    assert answer.status_code == 200, answer.text
    return answer.text


def key(root: LocalStorage, name: str) -> str:
    return key_of(root.url_of(f"{name}/pyspark_ckpt"))


@pytest.mark.parametrize("fork", ["fork", "other"])
def test_a_fork_links_to_its_snapshot_and_to_its_query_by_name(
    root: LocalStorage, fork: str
) -> None:
    (origin,) = re.findall('<p id="origin">.*?</p>', page(root, f"/q/{key(root, fork)}/"))
    first = key(root, "original")
    snapshot = f"/s/{key_of(root.url_of(SAVEPOINT))}/"
    expected = snapshot if fork == "fork" else f"/q/{first}/chk/2/"
    assert re.findall('href="([^"]*)"', origin) == [expected, f"/q/{first}/"]
    assert HOSTILE not in origin
    assert html.escape(HOSTILE) in origin


def test_a_savepoint_links_to_its_query_by_name(root: LocalStorage) -> None:
    text = page(root, f"/s/{key_of(root.url_of(SAVEPOINT))}/")
    assert f'of query <a href="/q/{key(root, "original")}/">{html.escape(HOSTILE)}</a>' in text


def test_the_command_to_go_back_can_be_copied(root: LocalStorage) -> None:
    text = page(root, f"/q/{key(root, 'original')}/")
    (command,) = re.findall("<code>(pyspark-ckpt rollback [^<]*)</code>", text)
    words = shlex.split(html.unescape(command))
    assert words == ["pyspark-ckpt", "rollback", root.url_of("original"), "chk-3"]
    (restore,) = re.findall(r"<code>(restoreFrom\([^<]*\))</code>", text)
    assert html.unescape(restore) == f"restoreFrom({root.url_of('original/pyspark_ckpt/chk-3')!r})"


def test_the_command_to_go_back_names_no_damaged_checkpoint(root: LocalStorage) -> None:
    for damaged in (3, 2, 1):
        path = root.root / f"original/pyspark_ckpt/chk-{damaged}/_metadata"
        path.write_bytes(path.read_bytes()[:-5])
        text = page(root, f"/q/{key(root, 'original')}/")
        commands = re.findall("<code>(pyspark-ckpt rollback [^<]*)</code>", text)
        assert [shlex.split(html.unescape(each))[-1] for each in commands] == (
            [f"chk-{damaged - 1}"] if damaged > 1 else []
        )
        (sentence,) = re.findall('<p id="go-back".*?</p>', text, re.DOTALL)
        assert ("can be read" in sentence, "go back to a savepoint" in sentence) == (
            True, damaged == 1,
        )  # fmt: skip


def test_beside_older_checkpoints_none_is_called_the_newest(root: LocalStorage) -> None:
    assert "go-back" not in page(root, f"/q/{key(root, 'original')}/?before=3")


def test_the_command_for_checkpoints_elsewhere_finds_them(
    root: LocalStorage, tmp_path: Path
) -> None:
    """A rollback takes the directory of all queries, as the setting has it."""
    directory = LocalStorage(tmp_path / "all checkpoints")
    directory.root.mkdir()
    (root.root / "original" / "pyspark_ckpt").rename(directory.root / "first")
    place = find_places(directory).queries[0]
    text = html.unescape(page(directory, f"/q/{place.key}/"))
    (command,) = re.findall("<code>(pyspark-ckpt rollback [^<]*)</code>", text)
    words = shlex.split(command)
    assert words[2:4] == ["LOCATION", "chk-3"]
    given = LocalStorage(Path(words[words.index("--checkpoints-directory") + 1]))
    assert given.child("first").exists("chk-3/_metadata")


def test_a_query_that_gets_another_id_is_found_by_it(
    root: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a rollback, while the console runs on."""
    monkeypatch.setattr(server, "_FOUND_MS", -1)
    directory = server._Directory(root)
    assert directory.identity("first") is not None
    run = RunStarted(run_id="again", at_ms=9, query_id="second", query_name="again")
    RunLog(root.child("original/pyspark_ckpt")).write(run)
    assert directory.identity("second") is not None
    assert directory.identity("first") is None


def test_a_later_search_reads_the_id_of_the_found_place_only(
    root: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a remote store each id is two requests, and the search is repeated every few seconds."""
    for name in ("a", "b"):
        run = RunStarted(run_id=name, at_ms=1, query_id=name, query_name=name)
        RunLog(root.child(f"{name}/pyspark_ckpt")).write(run)
    monkeypatch.setattr(server, "_FOUND_MS", -1)
    read: list[str] = []
    identity_of = server.identity_of
    monkeypatch.setattr(
        server, "identity_of", lambda place: read.append(place.key) or identity_of(place)
    )
    directory = server._Directory(root)
    found = directory.identity("b")
    assert found is not None
    assert len(read) > 1
    read.clear()
    again = directory.identity("b")
    assert again is not None
    assert again.place.key == found.place.key
    assert read == [found.place.key]


def test_only_the_newest_checkpoint_is_called_newest(root: LocalStorage) -> None:
    first = key(root, "original")
    old, new = (page(root, f"/q/{first}/chk/{number}/") for number in (2, 3))
    assert f"<h1>chk-2 of {html.escape(HOSTILE)} (newest: chk-3)</h1>" in old
    assert f"<h1>chk-3 of {html.escape(HOSTILE)}</h1>" in new
    here = re.compile(r'<a [^>]*class="here">([^<]*)</a>')
    assert here.findall(old) == ["chk-2"]
    assert here.findall(new) == ["Newest checkpoint"]


def test_each_page_says_of_when_it_is(root: LocalStorage) -> None:
    first = key(root, "original")
    tabs = ("", "chk/2/", "state", "settings", "plan", "files")
    for address in ("/", *(f"/q/{first}/{tab}" for tab in tabs)):
        assert re.search(r"as of 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ", page(root, address)), address
