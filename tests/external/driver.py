"""A driver in a separate process, and the storages that its location may be on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from tests.recovery.numbered_rows import write_input
from tests.servers.s3a import s3a_conf, s3a_jars

PROGRAM = Path(__file__).with_name("program.py")


class AskedError(Exception):
    """What the driver answered with: the class of its error, and what the error says."""


class Driver:
    """Sends lines to the program and reads its answers."""

    def __init__(
        self, work: Path, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ
    ) -> None:
        self.log = work / "driver.log"
        environment = {k: v for k, v in environment.items() if k != "PYSPARK_SUBMIT_ARGS"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(work), json.dumps(dict(conf))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
                start_new_session=True,
            )
        self.answer()

    def ask(self, what: str, *arguments: Any, **options: Any) -> Any:
        self.tell(what, *arguments, **options)
        return self.answer()

    def tell(self, what: str, *arguments: Any, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, arguments, options]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(">"):
                answer = json.loads(line[1:])
                if "error" in answer:
                    raise AskedError(f"{answer['error']}: {answer['message']}")
                return answer["done"]
        raise AssertionError(f"the driver has ended: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End the driver with its workers by SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextmanager
def driver(
    work: Path, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> Iterator[Driver]:
    started = Driver(work, conf, environment)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()


def conf_of(environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return Spark's settings for an S3 server's environment; ``None``: no S3."""
    if environment is None:
        return {}
    return conf_with(environment, s3a_jars(), s3a_conf(environment))


def conf_with(
    environment: Mapping[str, str], jars: Iterable[Path], conf: dict[str, str]
) -> dict[str, str]:
    """Return settings of a file system whose classes are in jars, with what workers need of it."""
    variables = {f"spark.executorEnv.{name}": value for name, value in environment.items()}
    return variables | conf | {"spark.driver.extraClassPath": ":".join(map(str, jars))}


def children_of(pid: int, name: str) -> list[int]:
    """Return the processes below one whose command has a name in it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (place / "cmdline").read_bytes().decode(errors="replace")
            if name in command and os.getsid(int(place.name)) == os.getsid(pid):
                found.append(int(place.name))
    return sorted(found)


class Input:
    """The input of the program: files of random rows, and what must come of them."""

    def __init__(self, work: Path, seed: int) -> None:
        self._directory = work / "input"
        self._directory.mkdir()
        self._chance = random.Random(seed)
        self._files: list[pd.DataFrame] = []

    def add(self, files: int = 1) -> None:
        for _ in range(files):
            self._files.append(write_input(self._directory, len(self._files), self._chance))

    def expected(self, first: int = 0) -> list[list[Any]]:
        """Return the output of the files from the `first` on, after all files before them."""
        rows = pd.concat(self._files)
        groups = rows.groupby("key")["value"]
        counted = rows.assign(n=groups.cumcount() + 1, total=groups.cumsum())
        counted = counted.iloc[sum(map(len, self._files[:first])) :]
        return sorted([key, n, total] for key, n, total in counted[["key", "n", "total"]].values)

    def check(self, output: list[list[Any]]) -> None:
        """Check that each row was numbered and added up once, in whatever order.

        After a kill, rows of two files were seen in another order.
        """
        rows = pd.concat(self._files)
        counted: dict[str, list[int]] = {}
        for number, (key, n, total) in enumerate(sorted(output)):
            totals = counted.setdefault(key, [0])
            assert n == len(totals), (number, key, n, total)
            totals.append(total)
        values = {key: sorted(group) for key, group in rows.groupby("key")["value"]}
        added = {
            key: sorted(after - before for before, after in pairwise(totals))
            for key, totals in counted.items()
        }
        assert added == values
