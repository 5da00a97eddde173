"""What changes a location does it through a ``FencedStorage``, or says here why it need not.

A driver that was paused and has been overtaken must change nothing. ``FencedStorage`` looks before
each change; a raw write is one that somebody has thought about.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pyspark_ckpt

PACKAGES = ("api", "query", "restarting", "restore", "shadowing")
CHANGES = {
    "delete", "delete_directory", "make_directory", "move", "remove_directory", "remove_if_empty",
    "replace", "write",
}  # fmt: skip
NOT_OF_STORAGES = ("msgspec.structs", "dataclasses")

STAGED = "into a directory that only this driver knows, or through the fence of its caller"
DECIDED = "a file that is created exclusively, before it and after it, decides who may"
REASONS = {
    "query/run_recorder.py": "records of this run, under a name of its own",
    "query/stopping/drain.py": DECIDED,
    "restarting/rollback.py": STAGED,
    "restarting/staging.py": STAGED,
    "restore/claim.py": "the claimed source, which belongs to this query alone",
    "restore/location/seedings.py _note_fresh": DECIDED,
    "restore/location/seedings.py _remove_directories": "only empty ones are removed",
    "restore/location/seedings.py clear": "the fence is looked at in the line before",
    "restore/location/start_location.py clear_leftovers": "files that no driver reads or writes",
    "restore/location/swap.py _remove_marker": DECIDED,
    "restore/location/swap.py swap": "the marker comes before the look: a later driver finds it",
    "restore/rescale.py _write_handles": STAGED,
    "restore/seeding.py": STAGED,
    "restore/spark_files.py": STAGED,
    "shadowing/followed.py": "the location of a fork, which this shadow alone drives",
    "shadowing/shadow.py": "the directory of a shadow, with a name of its own",
}
"""By the module, or by the module and the function."""


def raw_changes() -> Iterator[tuple[str, str, int]]:
    """Yield the module, function and line of each change of a storage that is not fenced."""
    root = Path(pyspark_ckpt.__file__).parent
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            module = path.relative_to(root).as_posix()
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef):
                    yield from ((module, function.name, line) for line in _lines(function))


def _lines(function: ast.FunctionDef) -> Iterator[int]:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    fenced = {
        each.arg
        for each in arguments
        if each.annotation is not None and ast.unparse(each.annotation) == "FencedStorage"
    }
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            receiver = ast.unparse(call.func.value)
            is_change = call.func.attr in CHANGES and receiver not in NOT_OF_STORAGES
            if is_change and receiver.partition(".")[0] not in fenced:
                yield call.lineno


def test_each_raw_change_of_a_location_has_a_reason() -> None:
    found = list(raw_changes())
    without = [
        f"{module}:{line} {function}"
        for module, function, line in found
        if module not in REASONS and f"{module} {function}" not in REASONS
    ]
    assert not without
    used = {each for module, function, _ in found for each in (module, f"{module} {function}")}
    assert used >= {*REASONS}, "a reason for what is no longer there"


def test_a_function_without_a_fence_is_found() -> None:
    """The look itself: a raw change is one, and a fenced one is none."""
    text = "def f(location: {}) -> None:\n    location.child('a').write('b', [])\n"
    for annotation, lines in (("Storage", [2]), ("FencedStorage", [])):
        (function,) = ast.parse(text.format(annotation)).body
        assert isinstance(function, ast.FunctionDef)
        assert list(_lines(function)) == lines
