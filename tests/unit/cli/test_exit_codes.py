"""A command that could not answer says so, and never that the answer is no."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_ckpt.cli import console_commands
from pyspark_ckpt.cli import main as main_module
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.cli.output import Result, as_json, json_text
from pyspark_ckpt.errors import CheckpointNotFoundError

COMMANDS = {"diff": ["diff", "a", "b"], "list": ["list", "a"]}
ERRORS = [
    CheckpointNotFoundError("none is there"), OSError("no answer"), ValueError("of a program"),
    KeyboardInterrupt(), BrokenPipeError(),
]  # fmt: skip


def run_raising(monkeypatch: pytest.MonkeyPatch, error: BaseException, arguments: list[str]) -> int:
    read = main_module.read_arguments

    def raising(given: Any) -> Any:
        chosen = read(given)

        def run(_: Any) -> Any:
            raise error

        chosen.run = run
        return chosen

    monkeypatch.setattr(main_module, "read_arguments", raising)
    monkeypatch.setattr(main_module.os, "dup2", lambda *_: None)
    return main(arguments)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_errors(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: str,
    error: BaseException,
) -> None:
    found = run_raising(monkeypatch, error, [*COMMANDS[command], "--json"])
    assert found == (1 if command == "list" else 2)
    printed = capfd.readouterr()
    if isinstance(error, KeyboardInterrupt | BrokenPipeError):
        assert printed.out == ""
        return
    assert json.loads(printed.out)["error"] == {
        "kind": type(error).__name__, "message": str(error),
    }  # fmt: skip
    assert ("Traceback" in printed.err) == isinstance(error, ValueError)


@pytest.mark.parametrize("error", ERRORS[:3], ids=lambda each: type(each).__name__)
def test_an_error_that_this_library_does_not_word_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    """A KeyError says no more than the key."""
    run_raising(monkeypatch, error, COMMANDS["list"])
    kind = "ValueError: " if isinstance(error, ValueError) else ""
    assert capfd.readouterr().err.splitlines()[-1] == f"pyspark-ckpt: {kind}{error}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_that_ends_the_process_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Its own exit code 0 would say that all is well."""
    found = run_raising(monkeypatch, SystemExit(0), [*COMMANDS[command], "--json"])
    assert found == (1 if command == "list" else 2)
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    assert "sys.exit(0)" in message
    assert "__main__" in message


@pytest.mark.parametrize("is_done", [True, False])
def test_a_result_that_is_none_is_no_negative_one(
    monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    read = main_module.read_arguments

    def without_answer(given: Any) -> Any:
        chosen = read(given)
        chosen.run = lambda _: Result({}, "", is_done=is_done, is_answer=False)
        return chosen

    monkeypatch.setattr(main_module, "read_arguments", without_answer)
    assert main(COMMANDS["diff"]) == 2
    assert main(COMMANDS["list"]) == 1


def test_numbers_that_json_does_not_have() -> None:
    given = {"x": float("nan"), "rows": [{"y": float("-inf"), "z": 1.5}], "w": (float("inf"),)}
    expected = {"x": "NaN", "rows": [{"y": "-Infinity", "z": 1.5}], "w": ["Infinity"]}
    for text in (as_json(given), json_text(given)):
        assert json.loads(text, parse_constant=pytest.fail) == expected


class AConsole:
    url = "http://127.0.0.1:1/"

    def wait(self) -> None:
        raise KeyboardInterrupt

    def close(self) -> None:
        pass


def test_the_console_prints_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr(console_commands, "open_console", lambda *_, **__: AConsole())
    assert main(["ui", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"url": AConsole.url}
    assert main(["ui", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("the console is at http://127.0.0.1:1/ until")
