"""Breaks one line of safety after the other, and shows that a test fails: ``make mutate``.

Each line is changed in a copy of the project, and the tests named beside it run there. A line whose
change no test notices is a survivor, and the program ends with an error. ``--table`` prints the
table of docs/promises.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("pyspark_ckpt", "state_backends", "tests", "tools", "docs", "conf")
FILES = ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "CHANGELOG.md", "Makefile")


class Mutation(NamedTuple):
    """A line of safety: what it is, where, its change, and the test that must fail."""

    name: str
    file: str
    line: str
    changed: str
    test: str


_OPTIONS = ("-p", "no:cacheprovider", "-m", "not soak and not reach")
_LOCAL = "tests/unit/storage/test_local.py"
MUTATIONS = (
    Mutation(
        "fsync of a file",
        "pyspark_ckpt/storage/local.py",
        "                os.fsync(file.fileno())\n",
        "",
        f"{_LOCAL}::test_a_file_is_durable_before_it_has_its_name_and_the_name_when_write_returns",
    ),
    Mutation(
        "fsync of a file's name",
        "pyspark_ckpt/storage/local.py",
        "        _sync_directory(path.parent)\n        return digested",
        "        return digested",
        f"{_LOCAL}::test_a_file_is_durable_before_it_has_its_name_and_the_name_when_write_returns",
    ),
    Mutation(
        "fsync of a directory that another process made",
        "pyspark_ckpt/storage/local.py",
        "    return (str(directory), status.st_ino) in _durable_directories",
        "    return True",
        f"{_LOCAL}::test_a_directory_of_a_killed_process_is_made_durable",
    ),
    Mutation(
        "fsync after a deletion",
        "pyspark_ckpt/storage/local.py",
        "            if directory.is_dir():\n                _sync_directory(directory)",
        "            pass",
        f"{_LOCAL}::test_a_deletion_is_durable_when_delete_returns",
    ),
    Mutation(
        "exclusive create, local",
        "pyspark_ckpt/storage/local.py",
        "give_name(temporary, path)  # unlike",
        "temporary.replace(path)  # unlike",
        "tests/unit/storage/test_storages.py -k TestLocalStorage",
    ),
    Mutation(
        "exclusive create, S3",
        "pyspark_ckpt/storage/servers/s3.py",
        'Body=body, IfNoneMatch="*", Metadata',
        "Body=body, Metadata",
        "tests/unit/storage/test_storages.py -k S3",
    ),
    Mutation(
        "digest of a file that is read",
        "pyspark_ckpt/storage/local.py",
        "            _checked(path, reference)(sha256_of(file))\n",
        "",
        "tests/unit/storage/test_storages.py -k TestLocalStorage",
    ),
    Mutation(
        "digest of _metadata",
        "pyspark_ckpt/formats/metadata_file.py",
        "hashlib.sha256(body).digest() != digest",
        "False",
        "tests/unit/formats/test_metadata_file.py",
    ),
    Mutation(
        "fence of a driver",
        "pyspark_ckpt/stores/directory.py",
        "if self._storage.exists(term_path(self._term + 1)):",
        "if False:",
        "tests/unit/stores",
    ),
    Mutation(
        "author of a checkpoint's id",
        "pyspark_ckpt/stores/directory.py",
        "        self._reserved.discard(checkpoint_id)\n        #",
        "        self._reserved.discard(checkpoint_id)\n        return\n        #",
        "tests/unit/stores",
    ),
    Mutation(
        "lineage of the local copy",
        "pyspark_ckpt/operator/durable/local_version.py",
        "    return version if version in lineage else None",
        "    return lineage[-1]",
        "tests/unit/operator/durable/test_local_copy.py",
    ),
    Mutation(
        "hold of the cleaner",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "may_clean = self._is_cleaning = self._holds == 0",
        "may_clean = self._is_cleaning = True",
        "tests/unit/checkpoint/test_cleaning_hold.py",
    ),
    Mutation(
        "pins of readers",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "return pinned_files(self._storage, now) if found else set()",
        "return set()",
        "tests/query/checkpoints/test_readers.py",
    ),
    Mutation(
        "files of pending base snapshots",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "        file.snapshot_id not in pending\n        and ",
        "        ",
        "tests/unit/checkpoint/test_cleaner.py",
    ),
    Mutation(
        "files that must exist before a checkpoint is published",
        "pyspark_ckpt/checkpoint/contents.py",
        "    check(query.storage, contents.files())\n",
        "",
        "tests/unit/checkpoint/test_contents.py",
    ),
    Mutation(
        "marker of a savepoint that is not complete",
        "pyspark_ckpt/savepoint/savepoint.py",
        "        if not self.target.exists(IN_PROGRESS_NAME):",
        "        if False:",
        "tests/unit/savepoint",
    ),
    Mutation(
        "newer formats of a handle",
        "pyspark_ckpt/formats/handle.py",
        "if header.format_version > HANDLE_FORMAT_VERSION:",
        "if False:",
        "tests/unit/formats/test_handle.py",
    ),
)


def survives(mutation: Mutation, place: Path) -> bool:
    """Return whether no test notices that a line is changed."""
    path = place / mutation.file
    whole = path.read_text()
    if whole.count(mutation.line) != 1:
        raise SystemExit(f"{mutation.file} does not have once: {mutation.line!r}")
    path.write_text(whole.replace(mutation.line, mutation.changed))
    try:
        run = subprocess.run(  # noqa: S603  # pytest, with tests of this file
            [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "not soak and not reach",
                *mutation.test.split(),
            ],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(whole)
    if run.returncode not in (0, 1):
        raise SystemExit(f"{mutation.name}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return run.returncode == 0


def table() -> str:
    """Return the table of lines and tests."""
    rows = [f"| {each.name} | `{each.file}` | `{each.test}` |" for each in MUTATIONS]
    return "\n".join(["| line of safety | where | test |", "|---|---|---|", *rows])


def main() -> int:
    """Break all lines, or those whose name contains a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of lines")
    parser.add_argument("--table", action="store_true", help="print the table of the docs")
    given = parser.parse_args()
    if given.table:
        sys.stdout.write(f"{table()}\n")
        return 0
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutated-") as directory:
        place = Path(directory)
        for name in COPIED:
            shutil.copytree(ROOT / name, place / name)
        for name in FILES:
            shutil.copy(ROOT / name, place / name)
        for mutation in MUTATIONS:
            if given.names and not any(each in mutation.name for each in given.names):
                continue
            survived = survives(mutation, place)
            verdict = "SURVIVES" if survived else "is found"
            sys.stdout.write(f"{verdict}: {mutation.name}\n")
            sys.stdout.flush()
            survivors += [mutation.name] if survived else []
    return len(survivors)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
