"""``pyspark-ckpt`` on files: its output, its exit code, and that it needs no Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import pyspark_ckpt
import pyspark_ckpt as ckpt
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.cli.query_commands import requested
from pyspark_ckpt.clock import utc_text
from pyspark_ckpt.formats.metadata import (
    CheckpointMetadata,
    Origin,
    SparkOperatorFile,
    SparkOperatorMetadata,
)
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind, SavepointFormat
from pyspark_ckpt.formats.origin import write_origin
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.storage.open import LocalStorage, Storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints
from tests.golden import archives
from tests.unit.conftest import snapshot  # noqa: F401  # a fixture

COMMANDS = ("savepoint", "stop", "list", "show", "dispose", "verify", "history", "lineage", "state")
WITH_MORE_ARGUMENTS = ("rename-uid", "plan", "rollback")


@pytest.fixture
def savepoint(storage: Storage, snapshot: CheckpointMetadata, tmp_path: Path) -> Path:  # noqa: F811
    store = CompletedCheckpoints(storage)
    store.reserve(1)
    store.add(1, msgspec.structs.replace(snapshot, checkpoint_id=1))
    made = write_savepoint(snapshot, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)
    return Path(made.path)


@pytest.mark.parametrize("command", [*COMMANDS, *WITH_MORE_ARGUMENTS])
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert f"pyspark-ckpt {command} /data" in printed
    assert "--json" in printed


@pytest.mark.parametrize(
    "wrong",
    [[], ["unknown"], ["list"], ["list", "a", "b"], ["savepoint", "x", "--type", "other"],
     ["savepoint", "x", "--timeout", "0"], ["savepoint", "x", "--timeout", "soon"],
     ["show", "--drain", "x"], ["rename-uid", "x", "--directory", "y"],
     ["rename-uid", "x", "count", "--directory", "y"], ["rename-uid", "x", "count=n"],
     ["rename-uid", "x", "=n", "--directory", "y"], ["rename-uid", "x", "n=", "--directory", "y"],
     ["plan", "x"], ["rollback", "x"]],
)  # fmt: skip
def test_wrong_arguments_end_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [*([command, ""] for command in (*COMMANDS, "promote", "discard", "release", "ui")),
     ["diff", "", "x"], ["diff", "x", ""], ["state", "x", "--state", "n", "--output", ""],
     ["savepoint", "x", "--directory", " "], ["bundle", "", "--output", "x"],
     ["bundle", "x", "--output", ""], ["rename-uid", "", "a=b", "--directory", "x"],
     ["rename-uid", "x", "a=b", "--directory", ""], ["plan", "", "a.py:f"],
     ["rollback", "", "chk-1"], ["rollback", "x", "chk-1", "--checkpoints-directory", ""],
     ["shadow", "", "a.py:f", "b.py:f"], ["shadow", "x", "a.py:f", "b.py:f", "--directory", ""],
     ["shadow", "x", "a.py:f", "b.py:f", "--html", ""]],
)  # fmt: skip
def test_an_empty_path_is_not_the_directory_of_the_terminal(
    arguments: list[str],
    savepoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such as in ``dispose "$NOT_SET"``."""
    monkeypatch.chdir(savepoint)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "give a path; it is empty" in capsys.readouterr().err
    assert (savepoint / "_metadata").exists()


def test_history_of_nothing_asks_for_a_location(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("missing", "other/files"):
        (tmp_path / "other" / "files").mkdir(parents=True, exist_ok=True)
        assert main(["history", str(tmp_path / name)]) == 1
        assert "give a query's checkpointLocation" in capsys.readouterr().err


def test_a_location_without_a_checkpoint_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "location" / "pyspark_ckpt").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["state", "location"]) == 1
    err = capsys.readouterr().err
    assert f"{tmp_path}/location/pyspark_ckpt has no completed checkpoint yet" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_users_mistake_ends_with_1_and_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere")
    assert main([command, missing]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{missing} does not exist, is empty or is a file" in err
    assert err.count("\n") == 1
    assert main([command, missing, "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    error = json.loads(out)["error"]
    assert error["kind"] == "CheckpointNotFoundError"
    assert missing in error["message"]
    assert not Path(missing).exists()


def test_list_and_history(
    savepoint: Path, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("list", "history"):
        assert main([command, str(storage.root)]) == 0
        assert "chk-1" in capsys.readouterr().out
        assert main([command, str(storage.root), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        (row,) = printed["checkpoints" if command == "list" else "history"]
        assert (row["checkpoint_id"], row["epoch"], row["files"]) == (1, 6, 4)
    shutil.rmtree(storage.root / "chk-1")
    assert main(["list", str(storage.root)]) == 0
    assert capsys.readouterr().out == "no checkpoints\n"


def test_list_finds_savepoints_in_sub_directories(
    savepoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `savepoint --directory before-upgrade` makes them; nothing outside is listed."""
    below = savepoint.parent / "before-upgrade" / savepoint.name
    shutil.copytree(savepoint, below)
    for path, expected in (
        (savepoint.parent, {str(savepoint), str(below)}),
        (below.parent.parent.parent / "sp" / "before-upgrade", {str(below)}),
    ):
        assert main(["list", str(path), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert {row["path"] for row in printed["savepoints"]} == expected
    shutil.rmtree(savepoint)
    assert main(["list", str(savepoint.parent)]) == 0
    text = capsys.readouterr().out
    assert str(below) in text
    assert re.search(r"\d\d:\d\d:\d\dZ", text), "the time says its zone"


@pytest.mark.slow
def test_python_runs_the_package(savepoint: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", "verify", str(savepoint)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "all intact" in done.stdout


@pytest.mark.slow
def test_what_a_command_leaves_out_is_told_beside_its_output(savepoint: Path) -> None:
    """In a separate process, because the test runner has its own handlers of the log."""
    away = savepoint.parents[1] / "away"
    away.mkdir()
    (savepoint.parent / "team\x1b[2J\nforged").symlink_to(away)
    done = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", "list", str(savepoint.parent), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert [row["path"] for row in json.loads(done.stdout)["savepoints"]] == [str(savepoint)]
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("pyspark-ckpt: ")
    assert "team?[2J?forged is left out of a search" in warning


@pytest.mark.slow
def test_an_error_in_the_log_has_its_traceback(savepoint: Path) -> None:
    program = (
        "import logging; from pyspark_ckpt.cli.main import main\n"
        f"main(['verify', {str(savepoint)!r}])\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logging.getLogger('other').exception('odd')\n"
        "logging.getLogger('other').warning('not of this library')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first, *_, last = done.stderr.splitlines()
    assert first == "pyspark-ckpt: odd"
    assert last.startswith("ZeroDivisionError")


def test_the_package_shows_public_names_only() -> None:
    assert dir(pyspark_ckpt) == sorted(pyspark_ckpt.__all__)


def test_history_shows_what_the_query_was_restored_from(
    savepoint: Path, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    origin = Origin(
        path=str(savepoint), kind=CheckpointKind.SAVEPOINT,
        checkpoint_id=None, query_id="0123456789", epoch=6,
        operators=("count",),
    )  # fmt: skip
    write_origin(storage, origin)
    assert main(["history", str(storage.root)]) == 0
    assert f"{savepoint}" in capsys.readouterr().out.partition("restored from:")[2]
    for found in (True, False):
        assert main(["history", str(storage.root), "--json"]) == 0
        (ancestor,) = json.loads(capsys.readouterr().out)["ancestors"]
        assert (ancestor["path"], ancestor["epoch"]) == (str(savepoint), 6)
        assert ancestor["found"] is found
        shutil.rmtree(savepoint, ignore_errors=True)


def test_lineage_of_a_directory_is_the_tree(
    savepoint: Path, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    (savepoint.parent / "elsewhere").mkdir()
    shutil.copytree(savepoint, savepoint.parent / "elsewhere" / "copied")
    assert main(["lineage", str(savepoint.parent / "elsewhere")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("savepoint of query ")
    assert text.rstrip().endswith("elsewhere/copied")
    assert main(["lineage", str(savepoint.parent / "elsewhere"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["lineage"]
    assert (row["kind"], row["found"], row["generation"]) == ("savepoint", True, 0)


def test_show(savepoint: Path, storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (savepoint, storage.root / "chk-1"):
        assert main(["show", str(path)]) == 0
        text = capsys.readouterr().out
        assert "operator count" in text
        assert "completed_at  " in text
        assert main(["show", str(path), "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["operators"][0]["parallelism"] == 4
        assert printed["ancestors"] == []


@pytest.mark.parametrize("kind", list(SavepointFormat))
def test_the_format_of_a_savepoint_is_shown_also_of_a_renamed_one(
    kind: SavepointFormat,
    storage: Storage,
    snapshot: CheckpointMetadata,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    operators = tuple(
        msgspec.structs.replace(
            operator,
            handles=tuple(
                msgspec.structs.replace(handle, base=None, segments=(), pending=None)
                for handle in operator.handles
            ),
        )
        for operator in snapshot.operators
    )
    empty = msgspec.structs.replace(snapshot, operators=operators)
    made = write_savepoint(empty, storage, str(tmp_path / "made"), kind)
    renamed = ckpt.location(made.path).rename_uid({"count": "counted"}, str(tmp_path / "renamed"))
    assert (made.format, renamed.format) == (kind.value, kind.value)
    for savepoint in (made, renamed):
        assert main(["list", str(Path(savepoint.path).parent), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["savepoints"]
        assert row["format"] == kind.value
        assert main(["show", savepoint.path, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["format"] == kind.value
        assert main(["list", str(Path(savepoint.path).parent)]) == 0
        assert kind.value in capsys.readouterr().out


def test_show_names_operators_of_sparks_own(
    storage: Storage,
    snapshot: CheckpointMetadata,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = SparkOperatorFile("0/1.delta", storage.write("shared/native", [b"x"]))
    mixed = msgspec.structs.replace(
        snapshot, spark_operators=(SparkOperatorMetadata(1, "dedupe", (file,)),)
    )
    made = write_savepoint(mixed, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)
    assert main(["show", made.path]) == 0
    assert "Spark operator: dedupe\n" in capsys.readouterr().out
    assert main(["verify", made.path]) == 0
    capsys.readouterr()
    (Path(made.path) / "shared" / "native").write_bytes(b"y")
    assert main(["verify", made.path]) == 1


def test_verify(savepoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(savepoint)]) == 0
    assert "all intact" in capsys.readouterr().out
    on_disk = sum(file.stat().st_size for file in savepoint.rglob("*") if file.is_file())
    for command in ("verify", "show"):
        assert main([command, str(savepoint), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["size_bytes"] == on_disk
    (savepoint / "shared" / "log").write_bytes(b"???")
    assert main(["verify", str(savepoint), "--json"]) == 1
    assert "shared/log" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_dispose(savepoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (savepoint / "note").write_text("mine")
    assert main(["dispose", str(savepoint)]) == 0
    printed = capsys.readouterr().out
    assert "4 files deleted" in printed
    assert "note" in printed
    assert [path.name for path in savepoint.iterdir()] == ["note"]


def test_rename_uid(savepoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "renamed")
    command = ["rename-uid", str(savepoint), "count=totals", "--directory", directory]
    assert main([*command, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["path"]
    assert Path(made).parent == Path(directory)
    assert main(["show", made, "--json"]) == 0
    assert [each["uid"] for each in json.loads(capsys.readouterr().out)["operators"]] == ["totals"]
    assert main(["verify", made]) == 0
    assert main(["show", str(savepoint)]) == 0
    assert "operator count" in capsys.readouterr().out
    for wrong in (["other=x"], ["count=a", "count=b"]):
        assert main(["rename-uid", str(savepoint), *wrong, "--directory", directory]) == 1
        assert wrong[0].partition("=")[0] in capsys.readouterr().err
    assert [path.name for path in Path(directory).iterdir()] == [Path(made).name]


def test_names_in_a_file_do_not_steer_the_terminal(
    storage: Storage,
    snapshot: CheckpointMetadata,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = msgspec.structs.replace(snapshot, query_name="\x1b[2Jgone\r")
    made = write_savepoint(named, storage, str(tmp_path / "sp"), SavepointFormat.NATIVE)
    assert main(["show", made.path]) == 0
    out = capsys.readouterr().out
    assert "gone" in out
    assert "\x1b" not in out
    assert "\r" not in out


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(savepoint: Path) -> None:
    program = f"{sys.executable} -m pyspark_ckpt show {savepoint} | true"
    done = subprocess.run(program, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_as_a_program_it_starts_no_spark(savepoint: Path) -> None:
    program = (
        "import sys; from pyspark_ckpt.cli.main import main\n"
        f"code = main(['verify', {str(savepoint)!r}])\n"
        "from pyspark import SparkContext\n"
        "sys.exit(code + 10 * (SparkContext._gateway is not None))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("at_ms", [9 * 10**18, 253402300800000, -(9 * 10**18), 2**63 - 1])
def test_a_time_that_pandas_lacks_hides_no_other_entry(
    storage: Storage,
    snapshot: CheckpointMetadata,  # noqa: F811
    savepoint: Path,
    capsys: pytest.CaptureFixture[str],
    at_ms: int,
) -> None:
    strange = msgspec.structs.replace(snapshot, completed_at_ms=at_ms, triggered_at_ms=-at_ms + 1)
    other = savepoint.with_name("savepoint-000000-0123456789ab")
    other.mkdir()
    (other / "_metadata").write_bytes(encode_metadata(strange))
    store = CompletedCheckpoints(storage)
    store.reserve(2)
    store.add(2, msgspec.structs.replace(strange, kind=CheckpointKind.CHECKPOINT, checkpoint_id=2))
    entry = {
        "kind": "checkpoint", "status": "aborted", "triggered_at_ms": at_ms, "epoch": 2**63 - 1,
        "duration_ms": 2**64 - 1,
    }  # fmt: skip
    storage.write(
        "history/000000000000000099-000000000000000-aaaaaaaa.json", [json.dumps(entry).encode()]
    )
    for command in (
        ["list", str(savepoint.parent)], ["list", storage.url], ["history", storage.url],
        ["lineage", str(savepoint.parent)], ["show", str(other)],
    ):  # fmt: skip
        assert main(command) == 0, command
        printed = capsys.readouterr().out
        assert savepoint.name in printed or storage.url in printed or str(at_ms) in printed
        assert main([*command, "--json"]) == 0, command
        json.loads(capsys.readouterr().out)
    assert "after 1970" in utc_text(at_ms)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_name_that_the_terminal_cannot_show(
    storage: Storage,
    snapshot: CheckpointMetadata,  # noqa: F811
    encoding: str,
) -> None:
    """Through a pipe, because only a separate process gets another encoding."""
    name = "\u30c1\u30a7\u30c3\u30af \u00f6"
    store = CompletedCheckpoints(storage)
    store.reserve(1)
    store.add(1, msgspec.structs.replace(snapshot, query_name=name))
    ran = subprocess.run(
        [sys.executable, "-m", "pyspark_ckpt", "show", storage.url_of("chk-1")],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert name.encode(encoding, "replace") in ran.stdout


def test_a_line_break_in_a_name_forges_no_line(
    tmp_path: Path,
    snapshot: CheckpointMetadata,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    forged = "x\ncheckpoint of query y, epoch 9: /nowhere"
    for name in ("a", "b"):
        store = CompletedCheckpoints(LocalStorage(tmp_path / name / "pyspark_ckpt"))
        store.reserve(1)
        metadata = msgspec.structs.replace(
            snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=1, root="..", query_id=name,
            query_name=forged,
            operators=(msgspec.structs.replace(snapshot.operators[0], uid=forged),),
        )  # fmt: skip
        store.add(1, metadata)
    assert main(["lineage", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert not [line for line in lines if line.startswith("checkpoint of query y")]
    assert main(["show", str(tmp_path / "a/pyspark_ckpt/chk-1")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("checkpoint of query y")]


def test_keys_of_a_release_are_shown_as_they_are_given() -> None:
    shown = requested("1", "op", [(b"\xff\x00", "ada", 7)])
    assert json.loads(json.dumps(shown))["keys"] == [["ff00", "ada", 7]]
    assert requested("1", "op", None)["keys"] == "all quarantined keys"


def test_a_release_without_a_quarantined_key_asks_for_the_quarantine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    location = archives.newest("heap") / "location"
    for key in ([], ["--null-key"]):
        assert main(["release", str(location), "--operator", "counted", *key]) == 1
        printed = capsys.readouterr().err
        assert "operator 'counted' had no quarantined key in epoch" in printed
        assert "is it built with onError='quarantine'? If it is, wait" in printed
