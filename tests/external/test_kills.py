"""Drivers, executors and servers die by ``kill -9`` while a query's location is on a storage.

Oracle: each key's rows are numbered and added up exactly once. A seed is printed for each test.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pyspark_ckpt import location
from pyspark_ckpt.storage.open import Storage, open_storage
from tests.external.conftest import Place
from tests.external.driver import AskedError, Input, children_of, conf_of, driver
from tests.external.front import Front
from tests.servers.hdfs import Hdfs
from tests.servers.s3 import BUCKET

pytestmark = [pytest.mark.own_jvm, pytest.mark.external, pytest.mark.timeout(3600)]

OFTEN = {
    "spark.ckpt.execution.checkpointing.interval": "300ms",
    "spark.ckpt.internal.execution.checkpointing.data-inline-threshold": "0b",
}
KILLS = 4
KILLS_IN_A_PHASE = 2
REQUESTS = {
    "start": 30,
    "restore": 80,
    "checkpoint": 60,
    "savepoint": 60,
    "stop_with_savepoint": 80,
}
"""About so many requests of the library a phase has; the driver dies at one of them."""

LONGEST_PAUSE_S = 6.0
DEADLINE_S = 300
MARKER = "_rollback"
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    return random.Random(seed)


def test_a_driver_is_killed(
    tmp_path: Path, place: Place, rows: Input, chance: random.Random
) -> None:
    """In its start, its epochs and its checkpoints. The last driver finds what was committed."""
    rows.add(8)
    location = open_storage(f"{place.url}/loc")
    for number in range(KILLS):
        committed = len(location.list("commits"))
        with driver(tmp_path, place.conf) as killed:
            killed.tell("start", f"{place.url}/loc", f"{place.url}/out", **OFTEN)
            if number:  # the first is killed in its start
                until(lambda: len(location.list("commits")) > committed)  # noqa: B023
            time.sleep(chance.uniform(0.0, LONGEST_PAUSE_S))
            killed.kill()
    with driver(tmp_path, place.conf) as last:
        last.ask("start", f"{place.url}/loc", f"{place.url}/out", **OFTEN)
        last.ask("process")
        last.ask("checkpoint")
        last.ask("stop")
        rows.check(last.ask("result", f"{place.url}/out"))


@pytest.mark.parametrize("phase", list(REQUESTS))
def test_a_driver_is_killed_in_a_phase(
    tmp_path: Path, place: Place, rows: Input, chance: random.Random, phase: str
) -> None:
    """Twice, at one of the library's requests; a restore continues another query's output."""
    at = place.url
    restored: dict[str, str] = {}
    for number in range(KILLS_IN_A_PHASE):
        rows.add()
        with driver(tmp_path, place.conf) as killed:
            if phase == "restore" and number == 0:
                killed.ask("start", f"{at}/other", f"{at}/out-other")
                killed.ask("process")
                restored["restore"] = killed.ask("stop_with_savepoint", f"{at}/savepoints")
                rows.add()
            if phase not in ("start", "restore"):
                killed.ask("start", f"{at}/loc", f"{at}/out")
                killed.ask("process")
            killed.ask("arm", chance.randrange(REQUESTS[phase]))
            if phase in ("start", "restore"):
                killed.tell("start", f"{at}/loc", f"{at}/out", **restored)
            else:
                killed.tell(phase, *([] if phase == "checkpoint" else [f"{at}/savepoints"]))
            with suppress(AssertionError):
                killed.answer()
                print("the phase had ended")
            killed.kill()
    with driver(tmp_path, place.conf) as last:
        rows.add()
        last.ask("start", f"{at}/loc", f"{at}/out", **restored)
        last.ask("process")
        location(last.ask("checkpoint")).verify()
        location(last.ask("stop_with_savepoint", f"{at}/savepoints")).verify()
        earlier = last.ask("result", f"{at}/out-other") if restored else []
        rows.check(earlier + last.ask("result", f"{at}/out"))


@pytest.mark.parametrize("place", ["hdfs"], indirect=True)
def test_a_rollback_is_killed(
    tmp_path: Path, place: Place, rows: Input, chance: random.Random
) -> None:
    """A start is refused until the next call has finished it; then the checkpoint is there."""
    at = place.url
    location = open_storage(f"{at}/loc")
    with driver(tmp_path, place.conf) as first:
        rows.add()
        first.ask("start", f"{at}/loc", f"{at}/out")
        first.ask("process")
        to = first.ask("checkpoint").rpartition("/")[2]
        rows.add()
        first.ask("process")
        first.ask("stop")
        with driver(tmp_path, place.conf) as killed:
            killed.tell("rollback", f"{at}/loc", to)
            until(lambda: location.exists(MARKER) or kept_in(location))
            time.sleep(chance.uniform(0.0, 0.5))
            killed.kill()
        if location.exists(MARKER):
            print("it was cut off")
            with pytest.raises(AskedError, match=r"RestoreError.*interrupted"):
                first.ask("start", f"{at}/loc", f"{at}/out2")
            first.ask("rollback", f"{at}/loc", to)
        assert len(kept_in(location)) == 1
        first.ask("start", f"{at}/loc", f"{at}/out2")
        first.ask("process")
        first.ask("stop")
        assert first.ask("result", f"{at}/out2") == rows.expected(first=1)


def kept_in(location: Storage) -> list[str]:
    return [name for name in location.list() if name.startswith("_before_rollback")]


def until(condition: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_two_drivers_on_one_location(tmp_path: Path, place: Place, rows: Input) -> None:
    """One of them is fenced; the other one's output is exact."""
    rows.add()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "input").symlink_to(tmp_path / "input")
    with driver(tmp_path, place.conf) as one, driver(tmp_path / "other", place.conf) as other:
        both = (one, other)
        for each in both:
            each.ask("start", f"{place.url}/loc", f"{place.url}/out", **OFTEN)
        give_up_at = time.monotonic() + DEADLINE_S
        while all(each.ask("state")["active"] for each in both):
            assert time.monotonic() < give_up_at, [each.ask("state") for each in both]
            rows.add()
            for each in both:
                each.ask("try_to_process")
        answers = [each.ask("state") for each in both]
        assert sum(state["active"] for state in answers) == 1, answers
        survivor = one if answers[0]["active"] else other
        rows.add()
        survivor.ask("process")
        survivor.ask("checkpoint")
        survivor.ask("stop")
        rows.check(survivor.ask("result", f"{place.url}/out"))


def test_executors_are_killed(
    tmp_path: Path, place: Place, rows: Input, chance: random.Random
) -> None:
    """At any moment of its epochs; its tasks run again elsewhere, from the files on the storage."""
    conf = {**place.conf, "spark.master": "local-cluster[2,1,1024]"}
    if "spark.driver.extraClassPath" in conf:
        conf["spark.executor.extraClassPath"] = conf["spark.driver.extraClassPath"]
    rows.add(3)
    with driver(tmp_path, conf) as cluster:
        cluster.ask("start", f"{place.url}/loc", f"{place.url}/out", **OFTEN)
        cluster.ask("process")
        for _ in range(KILLS):
            rows.add(2)
            cluster.tell("process")
            time.sleep(chance.uniform(0.0, LONGEST_PAUSE_S))
            until(executors := partial(children_of, cluster.process.pid, EXECUTOR))
            os.kill(chance.choice(executors()), signal.SIGKILL)
            cluster.answer()
        cluster.ask("checkpoint")
        cluster.ask("stop")
        rows.check(cluster.ask("result", f"{place.url}/out"))


@pytest.mark.parametrize("server", ["datanode", "namenode"])
def test_a_server_of_hdfs_is_killed(
    tmp_path: Path, hdfs: Hdfs, hdfs_url: str, rows: Input, server: str
) -> None:
    """The query may fail; once the server is back, a start continues from what was committed."""
    rows.add(2)
    with driver(tmp_path, {}) as started:
        started.ask("start", f"{hdfs_url}/loc", f"{hdfs_url}/out", **OFTEN)
        started.ask("process")
        rows.add(2)
        hdfs.kill(server)
        started.tell("try_to_process")
        hdfs.start()
        started.answer()
        if not started.ask("state")["active"]:
            started.ask("start", f"{hdfs_url}/loc", f"{hdfs_url}/out", **OFTEN)
        started.ask("process")
        started.ask("checkpoint")
        started.ask("stop")
        rows.check(started.ask("result", f"{hdfs_url}/out"))


@pytest.fixture
def front(s3_environment: dict[str, str]) -> Iterator[Front]:
    front = Front(s3_environment["AWS_ENDPOINT_URL"])
    yield front
    front.kill()


def test_an_s3_server_goes_away(
    tmp_path: Path, s3_environment: dict[str, str], front: Front, rows: Input
) -> None:
    """Moto keeps objects in memory, so what stands before it is killed and started again."""
    rows.add(2)
    at = f"s3a://{BUCKET}/{secrets.token_hex(8)}"
    through = s3_environment | {"AWS_ENDPOINT_URL": front.url}
    with driver(tmp_path, conf_of(through), {**os.environ, **through}) as started:
        started.ask("start", f"{at}/loc", f"{at}/out", **OFTEN)
        started.ask("process")
        rows.add(2)
        front.kill()
        started.tell("try_to_process")
        time.sleep(LONGEST_PAUSE_S)  # some of its requests are repeated, some fail
        front.start()
        started.answer()
        if not started.ask("state")["active"]:
            started.ask("start", f"{at}/loc", f"{at}/out", **OFTEN)
        started.ask("process")
        started.ask("checkpoint")
        started.ask("stop")
        rows.check(started.ask("result", f"{at}/out"))
