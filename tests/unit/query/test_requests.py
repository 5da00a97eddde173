"""Requests from outside: each is handled once, answered and kept; none harms the query."""

from __future__ import annotations

import ast
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ckpt.checkpoint.runner import SHORTEST_MS
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CkptError, ConfigurationError, CorruptFileError, UnsafePathError
from pyspark_ckpt.formats import requests as request_files
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.formats.requests import (
    Claimant,
    Request,
    RequestFiles,
)
from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.query.coordinator import Housekeeping
from pyspark_ckpt.query.requests import Actions, RequestHandler, WorkUnderWay, savepoint_target
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import Storage, open_storage
from tests.faults.nobody import as_nobody, let_enter

REQUEST = (
    b'{"action":"stop","requested_at_ms":1,"expires_at_ms":9999999999999,"requested_by":"x",'
    b'"directory":null,"format":"NATIVE","drain":false}'
)


def request(**changes: Any) -> Request:
    now = now_ms()
    fields = {
        "action": "savepoint", "requested_at_ms": now, "expires_at_ms": now + 60_000,
        "requested_by": "someone@here",
    }  # fmt: skip
    return Request(**{**fields, **changes})


class Query:
    """A query as the handler sees it; it keeps the calls."""

    def __init__(self, storage: Storage, savepoints: Path | None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None
        self.under_way = WorkUnderWay()
        self.requests = RequestHandler(
            storage,
            None if savepoints is None else str(savepoints),
            Actions(self.savepoint, self.stop),
            self.under_way,
        )

    def savepoint(self, directory: str, kind: SavepointFormat) -> Savepoint:
        self.calls.append(("savepoint", directory, kind))
        return self.made(directory)

    def stop(self, directory: str, kind: SavepointFormat, drain: bool) -> Savepoint:
        self.calls.append(("stop", directory, kind, drain))
        return self.made(directory)

    def made(self, directory: str) -> Savepoint:
        assert self.may_go_on.wait(60)
        if self.error is not None:
            raise self.error
        return Savepoint(f"{directory}/savepoint-1", 5, "q", 1, 2, 100, 3)


@pytest.fixture
def files(storage: Storage) -> RequestFiles:
    return RequestFiles(storage)


@pytest.fixture
def savepoints(tmp_path: Path) -> Path:
    return tmp_path / "savepoints"


@pytest.fixture
def query(storage: Storage, savepoints: Path) -> Query:
    return Query(storage, savepoints)


def answered(query: Query, files: RequestFiles, request_id: str) -> Any:
    """Poll until a request is answered."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        query.requests.poll()
        query.under_way.wait(60)
        answer = files.answer_to(request_id)
        if answer is not None:
            return answer
        time.sleep(0.01)
    raise AssertionError(request_id)


def test_a_request_is_handled_once_and_stays(
    query: Query, files: RequestFiles, savepoints: Path, storage: Storage
) -> None:
    request_id = files.post(request(format="NATIVE", directory="before/upgrade"))
    answer = answered(query, files, request_id)
    target = str(savepoints / "before" / "upgrade")
    assert query.calls == [("savepoint", target, SavepointFormat.NATIVE)]
    assert (answer.path, answer.epoch, answer.error) == (f"{target}/savepoint-1", 5, None)
    query.requests.poll()
    Query(storage, savepoints).requests.refuse_interrupted()
    assert len(query.calls) == 1
    assert sorted(path.name for path in (storage.root / "requests").iterdir()) == [
        f"{request_id}.{what}.json" for what in ("answer", "claim", "request")
    ]
    stop = files.post(request(action="stop", drain=True))
    assert answered(query, files, stop).error is None
    assert query.calls[-1] == ("stop", str(savepoints), SavepointFormat.CANONICAL, True)


def test_requests_in_an_object_store(savepoints: Path) -> None:
    storage = open_storage(f"memory://{secrets.token_hex(8)}")
    query, files = Query(storage, savepoints), RequestFiles(storage)
    assert answered(query, files, files.post(request())).error is None
    assert len(query.calls) == 1
    assert savepoint_target("a", "s3://bucket/sp") == "s3://bucket/sp/a"
    assert savepoint_target("s3://bucket/sp/a", "s3://bucket/sp") == "s3://bucket/sp/a"
    for root in ("s3://bucket/sp", "s3a://bucket/sp/"):
        for wanted in ("s3://bucket/sp", "s3://bucket/sp/", "s3a://bucket/sp", "s3a://bucket/sp/"):
            assert savepoint_target(wanted, root) == "s3://bucket/sp"
        assert savepoint_target("s3a://bucket/sp//a/", root) == "s3://bucket/sp/a"
    for wanted in ("s3a://bucket/sp/../x", "s3a://other/sp", "s3:/bucket/sp", "http://bucket/sp"):
        with pytest.raises(UnsafePathError, match="is not inside the query's savepoint-dir"):
            savepoint_target(wanted, "s3://bucket/sp")
    for wanted in ("s3://bucket/spa", "s3://other/x", "s3://bucket/sp/../x", "/etc", "file:/etc"):
        with pytest.raises(UnsafePathError):
            savepoint_target(wanted, "s3://bucket/sp")


def test_a_failure_is_answered(query: Query, files: RequestFiles) -> None:
    query.error = ValueError("no room")
    answer = answered(query, files, files.post(request()))
    assert answer.error == "ValueError: no room"
    assert answer.path is None
    query.error = None
    assert answered(query, files, files.post(request())).error is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"requested_at_ms": 1, "expires_at_ms": 2}, "expired"),
        ({"format": "ZIP"}, "Invalid enum value 'ZIP' - at `$.format`"),
        ({"format": "native"}, "Invalid enum value 'native' - at `$.format`"),
        ({"directory": "../elsewhere"}, "give a directory below it"),
        ({"directory": "/etc"}, "not inside"),
        ({"directory": "x/../../y"}, "give a directory below it"),
        ({"action": "format"}, "Invalid enum value 'format'"),
        ({"expires_at_ms": 0}, "never was valid"),
    ],
)
def test_what_may_not_be_is_refused(
    query: Query, files: RequestFiles, changes: dict[str, Any], why: str
) -> None:
    answer = answered(query, files, files.post(request(**changes)))
    assert why in answer.error
    assert query.calls == []


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x80\x04\x95.", b"[]", b"{}", b"null", b"[" * 16_000, b" " * 20_000,
        REQUEST.replace(b"{", b'{"action":"savepoint",'),
        REQUEST.replace(b"}", b',"command":"rm"}'),
    ],
)  # fmt: skip
def test_a_file_that_is_no_request_is_refused_once(
    query: Query, files: RequestFiles, storage: Storage, content: bytes
) -> None:
    request_id = f"{1:015}-{'0' * 16}"
    (storage.root / "requests").mkdir(parents=True)
    (storage.root / "requests" / f"{request_id}.request.json").write_bytes(content)
    answer = answered(query, files, request_id)
    assert answer.error is not None
    assert query.calls == []
    assert files.open_ids() == []


def test_what_is_no_file_blocks_nobody(query: Query, files: RequestFiles, storage: Storage) -> None:
    directory = storage.root / "requests"
    directory.mkdir(parents=True)
    os.mkfifo(directory / f"{1:015}-{'0' * 16}.request.json")
    (directory / f"{2:015}-{'0' * 16}.request.json").mkdir()
    (directory / f"{3:015}-{'0' * 16}.request.json").symlink_to("/etc/passwd")
    (directory / "other").write_text("foreign")
    request_id = files.post(request())
    assert answered(query, files, request_id).error is None
    assert (directory / "other").exists()


def test_a_query_without_a_savepoint_directory_refuses(
    storage: Storage, files: RequestFiles
) -> None:
    answer = answered(Query(storage, None), files, files.post(request()))
    assert "savepoint-dir" in answer.error


def test_a_link_out_of_the_savepoint_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sp").mkdir()
    (tmp_path / "sp" / "link").symlink_to(tmp_path)
    root = str(tmp_path / "sp")
    for wanted in ("link", "link/x", f"{root}/link/x", f"{root}/../x"):
        with pytest.raises(UnsafePathError):
            savepoint_target(wanted, root)
    assert savepoint_target(None, root) == savepoint_target(".", root) == root
    assert savepoint_target(f"{root}/a", root) == savepoint_target("a", root) == f"{root}/a"
    with pytest.raises(ConfigurationError):
        savepoint_target("a", None)


def test_the_savepoint_directory_in_other_spellings(tmp_path: Path) -> None:
    root = str(tmp_path / "sp")
    for given in (root, f"{root}/", f"file:{root}", f"file://{root}/", f"{tmp_path}//sp"):
        assert savepoint_target(given, root) == root, given
        assert savepoint_target(root, given) == root, given
        assert savepoint_target(f"{given}/a", root) == f"{root}/a", given
        assert savepoint_target(f"{given}//a/", root) == f"{root}/a", given
    outside = (f"file:{root}/../x", f"file:{root}/a/../../x", f"{root}/a/../../x", f"{root}x", "/")
    for wanted in (*outside, f"file:{tmp_path}", "file:/", f"file://host{root}", "a/../../x", ""):
        with pytest.raises(UnsafePathError, match="is not inside the query's savepoint-dir"):
            savepoint_target(wanted, root)


def test_at_most_two_at_once(query: Query, files: RequestFiles) -> None:
    query.may_go_on.clear()
    ids = [files.post(request()) for _ in range(4)]
    query.requests.poll()
    query.requests.poll()
    assert len(files.open_ids()) == 2
    query.may_go_on.set()
    for each in ids:
        assert answered(query, files, each).error is None
    assert len(query.calls) == 4


def test_what_a_driver_that_died_had_taken_is_answered(query: Query, files: RequestFiles) -> None:
    taken, withdrawn, waiting = (files.post(request()) for _ in range(3))
    assert files.claim(taken, Claimant.QUERY)
    assert files.claim(withdrawn, Claimant.REQUESTER)
    query.requests.refuse_interrupted()
    answer = files.answer_to(taken)
    assert answer is not None
    assert "driver ended" in str(answer.error)
    assert files.answer_to(withdrawn) is None
    query.requests.poll()
    assert answered(query, files, waiting).error is None
    assert len(query.calls) == 1


@pytest.mark.parametrize("claim", [b"", b'{"by":"query","unknown":1}', None])
def test_a_damaged_claim_harms_no_other_request(
    query: Query, files: RequestFiles, storage: Storage, tmp_path: Path, claim: bytes | None
) -> None:
    damaged, taken, waiting = sorted(files.post(request()) for _ in range(3))
    path = storage.root / "requests" / f"{damaged}.claim.json"
    if claim is None:
        (tmp_path / "elsewhere").write_bytes(b"{}")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(claim)
    assert files.claim(taken, Claimant.QUERY)
    for _ in range(2):
        query.requests.refuse_interrupted()
    assert files.answer_to(taken) is not None
    assert files.answer_to(damaged) is None
    assert answered(query, files, waiting).error is None
    assert len(query.calls) == 1


@pytest.mark.parametrize(
    ("right", "said"), [(0o555, "request {} is not taken"), (0o000, "nobody can ask this query")]
)
def test_a_directory_of_another_user_harms_nobody(
    query: Query,
    files: RequestFiles,
    storage: Storage,
    savepoints: Path,
    caplog: pytest.LogCaptureFixture,
    right: int,
    said: str,
) -> None:
    """The log says so once, the query runs on, and what it may take later is done."""
    left, waiting = files.post(request()), files.post(request())
    assert files.claim(left, Claimant.QUERY)
    clock_ms = 0
    housekeeping = Housekeeping(query.requests, lambda: None, Settings(), lambda: clock_ms, 0)

    def run_on() -> list[str]:
        nonlocal clock_ms
        for turn_ms in range(0, 3 * SHORTEST_MS, SHORTEST_MS // 2):
            clock_ms = turn_ms
            housekeeping.do(has_won=True)
        warned = [each.getMessage() for each in caplog.records]
        (storage.root / "requests").rename(storage.root / "before")
        answer = answered(query, files, files.post(request()))
        assert len(caplog.records) == len(warned)
        query.requests.close()
        return [*warned, answer.path]

    let_enter(storage.root.parent)
    for writable in (storage.root, savepoints):
        writable.mkdir(exist_ok=True)
        writable.chmod(0o777)
    (storage.root / "requests").chmod(right)
    told = as_nobody(run_on)
    assert told.startswith("returned "), told
    *warned, path = ast.literal_eval(told.removeprefix("returned "))
    assert path == f"{savepoints}/savepoint-1"
    assert all(str(storage.root / "requests") in each for each in warned)
    assert sum(said.format(waiting) in each for each in warned) == 1
    assert len(warned) == (2 if right else 1), warned  # one more of what nobody can answer


def test_a_query_that_ends_refuses_what_waits(query: Query, files: RequestFiles) -> None:
    request_id = files.post(request())
    query.requests.close()
    answer = files.answer_to(request_id)
    assert answer is not None
    assert answer.error == "the query has ended: start it and repeat the request"


def test_the_audit_trail_is_bounded(
    query: Query, files: RequestFiles, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_files, "KEPT", 2)
    ids = []
    for _ in range(5):
        ids.append(files.post(request()))
        answered(query, files, ids[-1])
    left = {path.name[:32] for path in (storage.root / "requests").iterdir()}
    assert left == set(sorted(ids)[-2:])


def test_a_directory_that_cannot_be_used_harms_nobody(
    query: Query, files: RequestFiles, storage: Storage
) -> None:
    storage.root.mkdir(parents=True)
    (storage.root / "requests").write_text("in the way")
    query.requests.refuse_interrupted()
    query.requests.poll()
    query.requests.close()
    with pytest.raises((OSError, CkptError)):
        files.post(request())


def serve(query: Query, until: threading.Event) -> threading.Thread:
    def poll() -> None:
        while not until.wait(0.02):
            query.requests.poll()

    thread = threading.Thread(target=poll)
    thread.start()
    return thread


def test_the_command_line_asks_and_waits(
    query: Query,
    storage: Storage,
    savepoints: Path,
    put_file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_file("drivers/1")
    until = threading.Event()
    serving = serve(query, until)
    try:
        assert main(["savepoint", str(storage.root), "--type", "native", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert (printed["path"], printed["epoch"]) == (f"{savepoints}/savepoint-1", 5)
        assert main(["stop", str(storage.root), "--drain", "--directory", "d"]) == 0
        assert f"{savepoints}/d/savepoint-1" in capsys.readouterr().out
        assert main(["savepoint", str(storage.root), "--directory", "/etc"]) == 1
        assert "not inside" in capsys.readouterr().err
    finally:
        until.set()
        serving.join()
    assert [call[0] for call in query.calls] == ["savepoint", "stop"]


def test_the_command_line_gives_up_in_time(
    query: Query,
    files: RequestFiles,
    storage: Storage,
    put_file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A request that nobody took is withdrawn, and no query takes it later.

    If a busy machine lets the query take it late, another request gets more time.
    """
    put_file("drivers/1")
    assert main(["stop", str(storage.root), "--timeout", "0.3"]) == 1
    assert "withdrawn" in capsys.readouterr().err
    assert main(["savepoint", str(storage.root), "--pick-up-timeout", "0.3"]) == 1
    printed = capsys.readouterr().err
    assert "withdrawn" in printed
    assert "No query runs" in printed
    query.requests.poll()
    query.requests.close()
    assert query.calls == []
    query.may_go_on.clear()
    until = threading.Event()
    serving = serve(query, until)
    try:
        for timeout_s in (1, 10, 100):
            asked = ["savepoint", str(storage.root), "--timeout", str(timeout_s), "--json"]
            assert main(asked) == 1
            message = json.loads(capsys.readouterr().out)["error"]["message"]
            if "withdrawn" not in message and "had expired" not in message:
                break
        assert "has not answered" in message
    finally:
        query.may_go_on.set()
        until.set()
        serving.join()


def test_a_request_is_read_as_it_was_posted(files: RequestFiles) -> None:
    wanted = request(directory="x", drain=True)
    assert files.read(files.post(wanted)) == wanted
    with pytest.raises(CorruptFileError):
        files.read(f"{9:015}-{'0' * 16}")
    assert msgspec.json.decode(msgspec.json.encode(wanted), type=Request) == wanted
