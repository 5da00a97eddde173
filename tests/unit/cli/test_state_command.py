"""``pyspark-ckpt state``: what it prints of golden data, and that all formats say the same."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from pyspark_ckpt.cli.main import main
from tests.golden import archives
from tests.unit.snapshot.made_savepoint import MadeSavepoint

GOLDEN = Path(__file__).parents[2] / "golden" / "1"
SAVEPOINT = str(GOLDEN / "heap-canonical" / "savepoint")
LOCATION = str(archives.newest("heap") / "location")
STORED = json.loads((GOLDEN / "heap-canonical" / "state.json").read_text())["n"]
COUNTS = {
    # 2 bytes of key group, 1 of state, 2 of MessagePack; the value is one MessagePack number
    bytes.fromhex(stored)[5:].decode(): bytes.fromhex(value)[1]
    for stored, value in STORED.items()
}
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, code: int = 0) -> str:
        assert main(["state", *arguments]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return call


def test_all_states_are_listed(run: Run) -> None:
    fields = json.loads(run(SAVEPOINT, "--json"))
    assert fields["epoch"] == 5
    assert [(row["operator"], row["state"], row["kind"]) for row in fields["states"]] == [
        ("op", "n", "value"),
        ("op", "recent", "list"),
        ("op", "due", "map"),
    ]
    text = run(SAVEPOINT)
    assert "watermark_ms  1704067240000" in text
    assert "chk-" in run(LOCATION), "the newest checkpoint of a location"


def test_rows_in_every_format(run: Run, tmp_path: Path) -> None:
    """The stored counts, decoded from the bytes of the golden data, in each format."""
    of_state = (SAVEPOINT, "--state", "n")

    def as_counts(rows: Any) -> dict[str, int]:
        return {row["k"]: int(row["n"]) for row in rows}

    lines = run(*of_state, "--format", "json").splitlines()
    assert as_counts(map(json.loads, lines)) == COUNTS
    assert as_counts(csv.DictReader(io.StringIO(run(*of_state, "--format", "csv")))) == COUNTS
    assert as_counts(json.loads(run(*of_state, "--json"))["rows"]) == COUNTS
    table = [line.split() for line in run(*of_state).splitlines()[2:]]
    assert {key: int(count) for key, count in table} == COUNTS
    file = tmp_path / "n.parquet"
    assert f"{len(COUNTS)} rows" in run(*of_state, "--format", "parquet", "--output", str(file))
    assert as_counts(pq.read_table(file).to_pylist()) == COUNTS
    run(*of_state, "--format", "json", "--output", str(tmp_path / "n.json"))
    assert (tmp_path / "n.json").read_text().splitlines() == lines


def test_one_key_and_a_limit(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key, count = next(iter(COUNTS.items()))
    of_key = (SAVEPOINT, "--state", "n", "--key", key, "--format", "json")
    assert json.loads(run(*of_key)) == {"k": key, "n": count}
    assert run(SAVEPOINT, "--state", "n", "--key", "nobody", "--format", "json") == ""
    assert 'no entry for key (k "nobody")' in caplog.text
    assert len(run(SAVEPOINT, "--state", "n", "--limit", "2").splitlines()) == 2 + 2
    file = tmp_path / "n.parquet"
    run(SAVEPOINT, "--state", "n", "--limit", "2", "--format", "parquet", "--output", str(file))
    assert pq.read_table(file).num_rows == 2
    assert len(run(SAVEPOINT, "--timers", "--limit", "3").splitlines()) == 2 + 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LOCATION, "--timers"), "say which one with --operator"),
        ((SAVEPOINT, "--state", "x"), "no state 'x'"),
        ((SAVEPOINT, "--state", "n", "--operator", "x"), "no operator 'x'"),
        ((SAVEPOINT, "--state", "n", "--key", "a", "--key", "b"), "the key has 1 columns (k)"),
        ((SAVEPOINT, "--operator", "x"), "no operator 'x'"),
        (("/nowhere",), "/nowhere does not exist, is empty or is a file: give the path of"),
    ],
)
def test_what_cannot_be_shown_is_refused(run: Run, arguments: Any, message: str) -> None:
    assert message in run(*arguments, code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "-1"), "argument --limit: '-1': give a whole number, 0 or more"),
        (("--limit", "all"), "argument --limit: 'all': give a whole number, 0 or more"),
        (("--limit", "1"), "--limit is for rows: give --state NAME"),
        (("--key", "a", "--format", "csv"), "--key, --format are for rows: give --state NAME"),
        (("--output", "file"), "--output is for rows"),
        (("--timers", "--key", "a"), "--key is for a state"),
        (("--timers", "--state", "n"), "--state and --timers are two tables"),
        (("--state", "n", "--json", "--format", "json"), "use --format json"),
        (("--state", "n", "--json", "--output", "file"), "--json prints one JSON object"),
        (("--state", "n", "--format", "parquet"), "give --output FILE"),
    ],
)
def test_arguments_that_do_not_fit_together_end_with_2(
    capsys: pytest.CaptureFixture[str], arguments: Any, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["state", SAVEPOINT, *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_one_operator_is_listed(run: Run) -> None:
    listed = json.loads(run(SAVEPOINT, "--operator", "op", "--json"))["states"]
    assert {row["operator"] for row in listed} == {"op"}


NUMBER = T.StructType().add("n", "long")
BINARY = T.StructType().add("id", "binary").add("text", "string")
ODD = [(b"\x00\xff", "a\tb\r\x1b[31m"), (b"\x01", 'quo"te,\ncomma'), (b"", "\u00a0\u2028é")]


@pytest.fixture
def odd(tmp_path: Path) -> str:
    """A savepoint whose keys are not printable."""
    return saved(tmp_path / "odd", ODD)


def saved(directory: Path, keys: list[tuple[bytes, str]]) -> str:
    """Return the path of a savepoint with the length of each key's text."""
    savepoint = MadeSavepoint(directory, BINARY, keys)
    savepoint.epoch(
        lambda handle: {"n": handle.getValueState("n", NUMBER)},
        lambda states, key: states["n"].update((len(key[1]),)),
    )
    path = savepoint.save("savepoint", canonical=True)
    savepoint.close()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_csv_on_standard_output_has_every_character(odd: str, encoding: str) -> None:
    """Through a pipe, as a program reads it."""
    program = "import sys; from pyspark_ckpt.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "state", odd, "--state", "n", "--format", "csv"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    printed = ran.stdout.decode()
    rows = {
        (bytes.fromhex(row["id"]), row["text"]): int(row["n"])
        for row in csv.DictReader(io.StringIO(printed, newline=""))
    }
    assert rows == {key: len(key[1]) for key in ODD}


def test_a_table_has_no_control_characters(run: Run, odd: str) -> None:
    assert "\x1b" not in run(odd, "--state", "n")


def test_a_binary_key_is_given_in_hex(run: Run, odd: str) -> None:
    key = ODD[0]
    of_key = (odd, "--state", "n", "--format", "json", "--key")
    found = json.loads(run(*of_key, key[0].hex(), "--key", key[1]))
    assert (found["id"], found["n"]) == (key[0].hex(), len(key[1]))
    message = run(*of_key, "not hex", "--key", "x", code=1)
    assert "--key 'not hex' cannot be read as binary for the key column 'id'" in message


def test_a_null_is_no_empty_text(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a key that is looked up, and in CSV; ``null`` is a text like any other."""
    keys = [(name, 1) for name in (None, "", "null")]
    schema = T.StructType().add("user", "string").add("day", "integer")
    savepoint = MadeSavepoint(tmp_path / "made", schema, keys)
    named = T.StructType().add("name", "string")
    savepoint.epoch(
        lambda handle: {"seen": handle.getValueState("seen", named)},
        lambda states, key: states["seen"].update((key[0],)),
    )
    of_state = (savepoint.save("savepoint", canonical=True), "--state", "seen")
    savepoint.close()
    for name, given in ((None, ["--null-key"]), ("", ["--key", ""]), ("null", ["--key", "null"])):
        found = run(*of_state, *given, "--key", "1", "--format", "json")
        assert json.loads(found) == {"user": name, "day": 1, "name": name}
    assert not caplog.text
    lines = run(*of_state, "--format", "csv").splitlines()
    assert sorted(lines) == ['"",1,""', ",1,", "null,1,null", "user,day,name"]
    assert "no rows" in run(*of_state, "--key", "null", "--null-key")
    assert 'no entry for key (user "null", day null)' in caplog.text
    assert "give --key or --null-key once for each" in run(*of_state, "--null-key", code=1)


def test_a_file_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    for path, why in ((tmp_path / "no" / "n", "there is no directory"), (tmp_path, "a directory")):
        message = run(SAVEPOINT, "--state", "n", "--format", "csv", "--output", str(path), code=1)
        assert f"--output {path}" in message
        assert why in message


@pytest.mark.parametrize("before", [None, "of yesterday"])
@pytest.mark.parametrize("format_", ["table", "json", "csv", "parquet"])
def test_no_part_of_the_rows_is_left_in_a_file(
    run: Run, tmp_path: Path, format_: str, before: str | None
) -> None:
    """The second subtask is damaged, which shows when the rows of the first are written."""
    path = saved(tmp_path / "made", [(bytes((number,)), "") for number in range(16)])
    _, last = sorted(Path(path).glob("**/*.parquet"))
    last.write_bytes(bytes(len(last.read_bytes())))
    output = tmp_path / "output"
    output.mkdir()
    if before is not None:
        (output / "n").write_text(before)
    arguments = ("--state", "n", "--format", format_, "--output", str(output / "n"))
    assert last.name in run(path, *arguments, code=1)
    left = {each.name: each.read_text() for each in output.iterdir()}
    assert left == ({} if before is None else {"n": before})


def test_a_file_is_replaced_as_a_whole(run: Run, odd: str, tmp_path: Path) -> None:
    """It keeps its mode; what a link stands for is replaced, and a pipe is written itself."""
    wanted = run(odd, "--state", "n", "--format", "json")
    file, link, pipe = (tmp_path / name for name in ("file", "link", "pipe"))
    file.write_text("longer than what follows" * 9)
    file.chmod(0o640)
    link.symlink_to(file)
    run(odd, "--state", "n", "--format", "json", "--output", str(link))
    assert (link.is_symlink(), file.read_text()) == (True, wanted)
    assert file.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    run(odd, "--state", "n", "--format", "json", "--output", str(pipe))
    assert (os.read(reader, 1 << 16).decode(), pipe.is_fifo()) == (wanted, True)
    os.close(reader)


@pytest.mark.slow
def test_it_starts_no_jvm() -> None:
    program = (
        "import sys; from pyspark_ckpt.cli.main import main\n"
        "from pyspark import SparkContext\n"
        f"code = main(['state', {SAVEPOINT!r}, '--state', 'n'])\n"
        "assert SparkContext._gateway is None\n"
        "sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
