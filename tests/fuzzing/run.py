"""Feeds changed files to every parser: ``python -m tests.fuzzing.run EXAMPLES``.

An input is a whole golden file with a few changes: bytes that are flipped, removed,
inserted, repeated or cut off. Half of the inputs get the right checksums again, so that the code
after the checksums is reached. Some inputs that are not a file of any kind come first. A parser may
return or raise an error of the library. Anything else is a failure, and so is an input that takes
more than two seconds or too much memory. An input that takes twenty seconds ends the process, also
in the midst of C; the input is in ``build/fuzzing/running``.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pyspark_ckpt.errors import CkptError, CorruptFileError
from tests.fuzzing.parsers import Parser, parsers
from tools.measured_commit import measured_commit

CORPUS = Path(__file__).parent / "corpus"
MOST_MEMORY_BYTES = 2 << 30
"""Address space beyond what the process has when it starts."""

DEADLINE_MS = 2_000
HANG_S = 20
"""Hypothesis judges a time after the call returns, so an input that never ends needs this."""

FAILED = Path("build") / "fuzzing"
ANYTHING = (b"", b"\xff\xfe", b"{}", b"null", b"[" * 100_000, b'{"no_such_field":' + b"[" * 100_000)
_INTERESTING = [b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"{", b'"', b"[" * 400]

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "remove", "insert", "repeat", "cut"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 64),
        st.one_of(st.sampled_from(_INTERESTING), st.binary(min_size=1, max_size=8)),
    ),
    min_size=1,
    max_size=4,
)


def changed(data: bytes, changes: list[tuple[str, float, int, bytes]]) -> bytes:
    """Return a file with some changes."""
    for kind, share, length, more in changes:
        at = int(share * len(data))
        if kind == "flip":
            data = data[:at] + more + data[at + len(more) :]
        elif kind == "remove":
            data = data[:at] + data[at + length :]
        elif kind == "insert":
            data = data[:at] + more + data[at:]
        elif kind == "repeat":
            data = data[: at + length] + data[at:]
        else:
            data = data[:at]
    return data


def check(parser: Parser, data: bytes, *, is_whole: bool = False) -> None:
    """Parse bytes; an error of the library is a good answer, but a whole file is not damaged."""
    (FAILED / "running").write_bytes(data)
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    try:
        parser.parse(data)
    except CkptError as exc:
        if is_whole and isinstance(exc, CorruptFileError):
            raise
    finally:
        faulthandler.cancel_dump_traceback_later()


def fuzz(name: str, parser: Parser, examples: int, *, is_repeatable: bool) -> None:
    """Feed a parser; raise what it should not have raised."""
    assert parser.samples, f"no samples for {name}"
    FAILED.mkdir(parents=True, exist_ok=True)
    for sample in parser.samples:
        check(parser, sample, is_whole=True)
    for data in ANYTHING:
        for each in (data, parser.seal(data)):
            check(parser, each)
    for path in sorted(CORPUS.glob(f"{_file_name(name)}-*")):
        check(parser, path.read_bytes())

    @settings(
        max_examples=examples,
        deadline=DEADLINE_MS,
        derandomize=is_repeatable,
        database=None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.sampled_from(parser.samples), CHANGES, st.booleans())
    def feed(sample: bytes, changes: Any, is_sealed: bool) -> None:
        data = changed(sample, changes)
        if is_sealed:
            data = parser.seal(data)
        try:
            check(parser, data)
        except Exception:
            digest = hashlib.sha256(data).hexdigest()[:12]
            (FAILED / f"{_file_name(name)}-{digest}").write_bytes(data)
            raise

    feed()


def _file_name(name: str) -> str:
    return name.replace(" ", "-").replace("'", "")


def main(arguments: list[str]) -> int:
    """Feed all parsers, or those that are named."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("examples", type=int, nargs="?", default=20_000, help="per parser")
    reader.add_argument("names", nargs="*", help="parsers; by default all")
    reader.add_argument("--repeatable", action="store_true", help="the same inputs each time")
    reader.add_argument("--results", type=Path, help="a file for the figures")
    given_arguments = reader.parse_args(arguments)
    logging.disable()  # what was left out is logged, for each input
    names = given_arguments.names or list(parsers())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY_BYTES, resource.RLIM_INFINITY))
    seconds: dict[str, float] = {}
    for name in names:
        began = time.monotonic()
        fuzz(
            name,
            parsers()[name],
            given_arguments.examples,
            is_repeatable=given_arguments.repeatable,
        )
        seconds[name] = round(time.monotonic() - began, 1)
        sys.stdout.write(f"{name}: {given_arguments.examples} inputs, {seconds[name]} s\n")
        sys.stdout.flush()
        if given_arguments.results is not None:
            _write(given_arguments.results, given_arguments.examples, seconds)
    return 0


def _write(path: Path, examples: int, seconds: dict[str, float]) -> None:
    """Write what was done so far; every parser in it got all inputs, and none failed."""
    figures = {
        "inputs_of_each_parser": examples,
        "inputs": examples * len(seconds),
        "seconds": round(sum(seconds.values()), 1),
        "processor_seconds": round(time.process_time(), 1),
        "most_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "commit": measured_commit(),
        "seconds_of_parsers": seconds,
    }
    path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
