"""Write the pages that come from code: the command line, the abort reasons and the errors.

Run it after a change of the commands, of ``AbortReason`` or of ``errors``: ``make pages``.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from pyspark_ckpt import errors
from pyspark_ckpt.abort_reason import AbortReason
from pyspark_ckpt.cli.arguments import parser

ROOT = Path(__file__).parents[1]
CLI = ROOT / "docs" / "reference" / "cli.md"
FAILURES = ROOT / "docs" / "operate" / "failures.md"
_FAILURES_HEAD = """\
# Failures, and what to do

<!-- `make pages` writes this page from the code. -->

## Reasons for which a checkpoint or savepoint is aborted

A reason is in `query.checkpoints()`, in `pyspark-ckpt history`, in the log, and in
`CheckpointAbortedError.reason`. An aborted checkpoint loses nothing: the query continues, and its
older checkpoints stay. An aborted checkpoint whose reason counts adds to
`spark.ckpt.execution.checkpointing.tolerable-failed-checkpoints`. A savepoint never does.

| reason | counts | what happened | what to do |
|---|---|---|---|
"""
_ERRORS_HEAD = """
## Errors

Each error inherits from `CkptError`, and from a builtin or an error of PySpark. The message says
what happened, where, and what to do next.

| error | is also | when |
|---|---|---|
"""


def cli_page() -> str:
    """Return the page about the command line."""
    top = parser()
    codes = " ".join((top.epilog or "").split())
    written = "<!-- `make pages` writes this page from the code. -->"
    lines = ["# Command line", "", written, "", codes, ""]
    for name, command in sorted(_commands(top).items()):
        lines += [f"## {name}", "", command.description or "", ""]
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [_row(action) for action in command._actions if action.dest != "help"]  # noqa: SLF001
        examples = (command.epilog or "").removeprefix("examples:\n")
        lines += ["", "```sh", inspect.cleandoc(examples), "```", ""]
    return "\n".join(lines)


def failures_page() -> str:
    """Return the page about abort reasons and errors."""
    reasons = [
        f"| `{reason.value}` | {'yes' if reason.counts else 'no'} | {reason.meaning} "
        f"| {reason.advice} |\n"
        for reason in AbortReason
    ]
    return _FAILURES_HEAD + "".join(reasons) + _ERRORS_HEAD + "".join(_error_rows())


def _commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = top._actions  # noqa: SLF001
    return next(
        dict(action.choices)
        for action in actions
        if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
    )


def _row(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and action.nargs != 0:
        name += f" {action.metavar or action.dest.upper()}"
    notes = [action.help or ""]
    if action.choices is not None:
        notes.append("one of " + ", ".join(f"`{choice}`" for choice in action.choices))
    default = action.default
    if isinstance(default, str | int) and default is not False and "default" not in notes[0]:
        notes.append(f"default `{default}`")
    text = "; ".join(note for note in notes if note).replace("|", r"\|")
    return f"| `{name}` | {text} |"


def _error_rows() -> Iterator[str]:
    for name, error in vars(errors).items():
        if not inspect.isclass(error) or not issubclass(error, errors.CkptError):
            continue
        others = [base for base in error.__mro__ if not issubclass(base, errors.CkptError)]
        near = [base.__name__ for base in others if base.__module__ != "builtins"]
        builtin = [base.__name__ for base in others if base.__module__ == "builtins"]
        also = [*near, *builtin][0:1]
        when = re.sub(r":\w+:`([\w.]+)`", r"`\1`", (error.__doc__ or "").splitlines()[0])
        shown = f"`{also[0]}`" if also and also[0] not in ("Exception", "PySparkException") else ""
        yield f"| `{name}` | {shown} | {when.replace('``', '`')} |\n"


if __name__ == "__main__":
    CLI.write_text(cli_page(), encoding="utf-8")
    FAILURES.write_text(failures_page(), encoding="utf-8")
