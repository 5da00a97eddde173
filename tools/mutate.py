"""Breaks one line of safety after the other, and shows that a test fails: ``make mutate``.

Each line is changed in a copy of the project, and the tests named beside it run there: first with
the line as it is, where they must pass, then with the changed line. A change is found if a test
fails, and passes again once the line is back; so a server that does not start finds nothing. A line
whose change no test notices is a survivor, and the program ends with an error.

``tests/mutation/results.json`` gets the results, and ``--table`` prints them as the table of
docs/promises.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "mutation" / "results.json"
COPIED = ("pyspark_ckpt", "state_backends", "tests", "tools", "docs", "conf")
FILES = ("pyproject.toml", "setup.cfg", "setup.py", "README.md", "CHANGELOG.md", "Makefile")


class Mutation(NamedTuple):
    """A line of safety: what it is, where, its change, and the test that must fail."""

    name: str
    file: str
    line: str
    changed: str
    test: str


_OPTIONS = ("-x", "-q", "-rf", "-p", "no:cacheprovider", "-m", "not soak and not reach")
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
_LOCAL = "tests/unit/storage/test_local.py"
_NEWER = "tests/unit/formats/test_newer_formats.py"
_HOSTILE = "tests/unit/restore/test_hostile_savepoint.py"
_OTHERS = "tests/query/restoring/test_restart_among_others.py"

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
        "names that a killed driver left",
        "pyspark_ckpt/stores/directory.py",
        "            self._storage.make_durable(checkpoint_name(number))",
        "            pass",
        "tests/unit/stores/test_directory.py",
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
        "files of a checkpoint that cannot be read",
        "pyspark_ckpt/checkpoint/cleaning.py",
        "                    metadata,\n                )\n                return\n",
        "                    metadata,\n                )\n                continue\n",
        "tests/unit/checkpoint/test_cleaner.py",
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
    Mutation(
        "newer formats of _metadata",
        "pyspark_ckpt/formats/metadata_file.py",
        "    if version > METADATA_FORMAT_VERSION:",
        "    if False:",
        _NEWER,
    ),
    Mutation(
        "newer formats of change files",
        "pyspark_ckpt/formats/change_file.py",
        "MAGIC < magic <= MAGIC",
        "MAGIC > magic <= MAGIC",
        _NEWER,
    ),
    Mutation(
        "newer formats of canonical files",
        "pyspark_ckpt/formats/canonical_file.py",
        "    if version is not None and _is_newer(version):",
        "    if False:",
        _NEWER,
    ),
    Mutation(
        "newer formats of captures",
        "pyspark_ckpt/operator/capture/capture_file.py",
        "        if version > CAPTURE_FORMAT_VERSION:",
        "        if False:",
        "tests/unit/testing/test_replay.py -k newer",
    ),
    Mutation(
        "digest of a captured section",
        "pyspark_ckpt/operator/capture/capture_file.py",
        "        if hashlib.sha256(data).hexdigest() != section.sha256:",
        "        if False:",
        "tests/unit/testing/test_replay.py",
    ),
    Mutation(
        "look for a driver that has taken a seeding over",
        "pyspark_ckpt/restore/location/seedings.py",
        "        if self._location.exists(seeding_path(self._number + 1)):",
        "        if False:",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "end of a seeding that another driver has taken over",
        "pyspark_ckpt/restore/location/seedings.py",
        """        except FileExistsError as exc:
            raise _taken_over(self._location) from exc
        self._location.delete([SEEDING_MARKER])""",
        """        except FileExistsError:
            pass
        self._location.delete([SEEDING_MARKER])""",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "end of a seeding that a power loss may take",
        "pyspark_ckpt/restore/location/seedings.py",
        "    location.make_durable(SEEDINGS)",
        "    pass",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "epochs that began beside a seeding",
        "pyspark_ckpt/restore/location/seedings.py",
        "    try:\n        _check_fresh(location)",
        "    try:\n        pass",
        "tests/unit/restore/location/test_seedings.py",
    ),
    Mutation(
        "types of schemas that PySpark would import",
        "pyspark_ckpt/formats/metadata_check.py",
        "    if has_user_type:",
        "    if False:",
        _HOSTILE,
    ),
    Mutation(
        "types of schemas that Spark would load",
        "pyspark_ckpt/restore/spark_files.py",
        "    if _USER_DEFINED.search(content) or _ESCAPE.search(content):",
        "    if False:",
        _HOSTILE,
    ),
    Mutation(
        "names in Spark's archives",
        "pyspark_ckpt/restore/spark_files.py",
        "    if not isinstance(value, str) or not _PLAIN_NAME.fullmatch(value):",
        "    if False:",
        _HOSTILE,
    ),
    Mutation(
        "most bytes of an archive of Spark's",
        "pyspark_ckpt/restore/spark_files.py",
        "            if sum(entry.file_size for entry in entries) > MAX_CHECKED_BYTES:",
        "            if False:",
        _HOSTILE,
    ),
    Mutation(
        "most files and objects of _metadata",
        "pyspark_ckpt/formats/metadata_check.py",
        "        if found > most:",
        "        if False:",
        _HOSTILE,
    ),
    Mutation(
        "claim of an exchange",
        "pyspark_ckpt/restore/location/exchange.py",
        "        if self._location.exists(self._next) or begun_exchange(self._location) "
        "!= self._begun:",
        "        if False:",
        "tests/unit/restore/location/test_exchange.py",
    ),
    Mutation(
        "new content that was deleted before it was moved in",
        "pyspark_ckpt/restore/location/exchange.py",
        "    if set(missing) - rewritten:",
        "    if False:",
        "tests/unit/restore/location/test_exchange.py",
    ),
    Mutation(
        "proof of a candidate before its promotion",
        "pyspark_ckpt/shadowing/shadow.py",
        "        if not report.is_equal:",
        "        if False:",
        "tests/query/restoring/test_shadow.py::test_a_planted_difference_is_named",
    ),
    Mutation(
        "one stop with a savepoint at a time",
        "pyspark_ckpt/restarting/stopping.py",
        "        with self._for_good:",
        "        if True:",
        f"{_OTHERS}::test_two_stops_at_once_run_no_epoch_behind_the_savepoint",
    ),
    Mutation(
        "no restart of a query that somebody stopped",
        "pyspark_ckpt/query/stopping/stops.py",
        "        return self._restart.has_begun and not self._restart.is_unwanted",
        "        return True",
        f"{_OTHERS} -k stays_stopped",
    ),
    Mutation(
        "timers of parked keys",
        "pyspark_ckpt/operator/state/timers.py",
        "        return next(found, PARKED_TIMERS_MS)",
        "        return next(found, None)",
        "tests/query/state/test_quarantine.py::test_timers_of_parked_keys_keep_their_clock",
    ),
    Mutation(
        "marks of a combined state that another program wrote",
        "pyspark_ckpt/operator/schema/evolution.py",
        "place.get(field.name, added + 1 if field.name in marks else added)",
        "place.get(field.name, added)",
        "tests/unit/operator/schema/test_evolution.py",
    ),
)


class Ran(NamedTuple):
    """A run of pytest: the tests that failed, and whether it ended in another way."""

    failed: tuple[str, ...]
    is_broken: bool
    output: str
    seconds: float


def run_tests(names: list[str], place: Path) -> Ran:
    """Run tests in a copy of the project, up to the first that fails.

    Parameters
    ----------
    names
        Arguments of pytest.
    place
        The copy.
    """
    began = time.monotonic()
    done = subprocess.run(  # noqa: S603  # pytest, with tests of this file
        [sys.executable, "-m", "pytest", *_OPTIONS, *names],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    failed = tuple(_FAILED.findall(done.stdout)) if done.returncode == 1 else ()
    # A fixture that fails is an error and no failure: the test was not asked.
    is_broken = done.returncode != 0 and not failed
    return Ran(failed, is_broken, output, time.monotonic() - began)


def check_unchanged(names: list[str], place: Path) -> None:
    """Raise if tests do not pass with every line as it is."""
    ran = run_tests(names, place)
    if ran.failed or ran.is_broken:
        raise SystemExit(f"without any change {names} do not pass: {ran.output[-2000:]}")


def result_of(mutation: Mutation, place: Path) -> dict[str, Any]:
    """Change a line, and return which test notices it.

    Parameters
    ----------
    mutation
        The line; its tests pass without the change.
    place
        The copy of the project.

    Returns
    -------
    dict of str to Any
        A row of the results.
    """
    path = place / mutation.file
    whole = path.read_text()
    if whole.count(mutation.line) != 1:
        raise SystemExit(f"{mutation.file} does not have once: {mutation.line!r}")
    path.write_text(whole.replace(mutation.line, mutation.changed))
    try:
        ran = run_tests(mutation.test.split(), place)
    finally:
        path.write_text(whole)
    if ran.is_broken:
        raise SystemExit(f"{mutation.name}: pytest itself failed: {ran.output[-2000:]}")
    if ran.failed:
        check_unchanged([ran.failed[0]], place)
    return {
        "line": mutation.name,
        "file": mutation.file,
        "tests": mutation.test,
        "is_found": bool(ran.failed),
        "by": ran.failed[0] if ran.failed else None,
        "seconds": round(ran.seconds, 1),
    }


def results(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the rows of the last run of each line, by the name of the line."""
    if not path.exists():
        return {}
    return {row["line"]: row for row in json.loads(path.read_text())}


def write_results(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Write the rows of lines that there still are, in their order."""
    ordered = [rows[each.name] for each in MUTATIONS if each.name in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def table() -> str:
    """Return the table of lines, tests and results."""
    rows = results()
    lines = ["| line of safety | where | test | last run |", "|---|---|---|---|"]
    for each in MUTATIONS:
        row = rows.get(each.name)
        said = "not run" if row is None else "**survived**"
        if row is not None and row["is_found"]:
            said = f"found in {row['seconds']:.0f} s"
        lines.append(f"| {each.name} | `{each.file}` | `{each.test}` | {said} |")
    return "\n".join(lines)


def main() -> int:
    """Break all lines, or those whose name contains a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of lines")
    parser.add_argument("--table", action="store_true", help="print the table of the docs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a file for the results")
    given = parser.parse_args()
    if given.table:
        sys.stdout.write(f"{table()}\n")
        return 0
    survivors = 0
    passed: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="mutated-") as directory:
        place = Path(directory)
        commit = _commit()  # of what is copied, whatever is committed meanwhile
        for name in COPIED:
            shutil.copytree(ROOT / name, place / name)
        for name in FILES:
            shutil.copy(ROOT / name, place / name)
        for mutation in MUTATIONS:
            if given.names and not any(each in mutation.name for each in given.names):
                continue
            if mutation.test not in passed:
                check_unchanged(mutation.test.split(), place)
                passed.add(mutation.test)
            row = {**result_of(mutation, place), "commit": commit}
            write_results({**results(given.results), mutation.name: row}, given.results)
            verdict = f"is found by {row['by']}" if row["is_found"] else "SURVIVES"
            sys.stdout.write(f"{mutation.name}: {verdict}, {row['seconds']} s\n")
            sys.stdout.flush()
            survivors += not row["is_found"]
    return survivors


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


if __name__ == "__main__":
    sys.exit(min(main(), 1))
