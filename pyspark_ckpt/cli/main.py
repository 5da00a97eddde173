"""``pyspark-ckpt``: reads the arguments, runs a command and prints its result."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence

from pyspark_ckpt.cli.arguments import read_arguments
from pyspark_ckpt.cli.output import (
    as_json,
    failure,
    hand_over,
    one_line,
    printable,
    show,
    show_printable,
)
from pyspark_ckpt.errors import CkptError, ConfigurationError

OK, FAILED, USAGE = 0, 1, 2
"""Exit codes; argparse exits with ``USAGE``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the entry point of ``pyspark-ckpt``.

    The exit status is 0 on success and 1 on failure. For ``diff`` and ``shadow`` it is 0 if the
    snapshots are equal, 1 if they differ, and 2 on a failure or an interrupt. Wrong arguments end
    the process with 2.
    """
    logging.basicConfig(level=logging.WARNING, handlers=[_shown_warnings()])
    chosen = read_arguments(arguments)
    # For `diff`, 1 says that the snapshots differ.
    failed = USAGE if chosen.has_negative_result else FAILED
    try:
        result = chosen.run(chosen)
        if not result.is_shown:
            show(sys.stdout, as_json(result.fields) if chosen.json else printable(result.text))
        write = hand_over if result.is_data and not sys.stdout.isatty() else show_printable
        for part in result.parts:
            write(sys.stdout, part)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failed
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return failed
    except SystemExit as exc:
        _report(chosen, _of_program(exc))
        return failed
    except Exception as exc:
        is_named = isinstance(exc, CkptError | OSError)
        if not is_named:  # of the user's program, or a bug
            traceback.print_exc()
        _report(chosen, exc, "" if is_named else f"{type(exc).__name__}: ")
        return failed
    if not result.is_answer:
        return failed
    return OK if result.is_done else FAILED


def _shown_warnings() -> logging.Handler:
    """Return what shows this library's warnings, such as what a search left out, and all errors."""
    handler = logging.StreamHandler()
    handler.addFilter(
        lambda record: record.levelno >= logging.ERROR or record.name.startswith("pyspark_ckpt.")
    )
    handler.setFormatter(_OneLine())
    return handler


class _OneLine(logging.Formatter):
    """Formats a message without control characters, because it has stored names."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return f"pyspark-ckpt: {one_line(record.message)}"


def _report(chosen: Namespace, error: Exception, kind: str = "") -> None:
    """Show an error; JSON has its kind in any case."""
    if chosen.json:
        sys.stdout.write(as_json(failure(error)))
    else:
        show_printable(sys.stderr, f"pyspark-ckpt: {kind}{error}\n")


def _of_program(exit_of_program: SystemExit) -> ConfigurationError:
    return ConfigurationError(
        f"the program called sys.exit({exit_of_program.code!r}) when it was imported: call what "
        'runs it below if __name__ == "__main__"'
    )
