"""Puts the simulation in the place of what the library takes from its host.

Threads, locks, clocks, sleeps, random names, local disk, S3, ZooKeeper, Spark's jobs: all of the
library's code above them is the real one.
"""

from __future__ import annotations

import secrets
import sys
import types
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from typing import Any
from unittest.mock import patch

from pyspark_ckpt import clock
from pyspark_ckpt.checkpoint import cleaning, runner, time_limit
from pyspark_ckpt.formats import canonical_file
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.history import listener
from pyspark_ckpt.operator.durable import local_snapshots
from pyspark_ckpt.restarting import rollback, rollback_decision, staging
from pyspark_ckpt.restore import seeding
from pyspark_ckpt.restore.location import facts
from pyspark_ckpt.restore.location.facts import bound_parallelism
from pyspark_ckpt.restore.rescale import Seed, rewrite_of
from pyspark_ckpt.savepoint import taker
from pyspark_ckpt.sessions.classic import ClassicSession
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage import base, local, mount, retrying
from pyspark_ckpt.storage import open as opening
from pyspark_ckpt.storage.base import Storage
from pyspark_ckpt.storage.servers import s3
from pyspark_ckpt.stores import open as stores
from state_backends import registry
from tests import rewrites
from tests.simulation.backend import FileBackend
from tests.simulation.bucket import Bucket, BucketStorage
from tests.simulation.disk import Disk, DiskOs, DiskPath, DiskShutil
from tests.simulation.location import SparkFiles
from tests.simulation.pointers import SimulatedPointers
from tests.simulation.scheduler import Scheduler, current_actor
from tests.simulation.threads import file_locks_of, queue_of, threads_of
from tests.unit.memory_pointers import SharedPointers


class _OfEachProcess:
    """A set that is another one in each simulated process."""

    def __init__(self) -> None:
        self._known: set[Any] = set()

    def add(self, item: Any) -> None:
        self._known.add((self._process(), item))

    def __contains__(self, item: Any) -> bool:
        return (self._process(), item) in self._known

    def _process(self) -> Any:
        actor = current_actor()
        return None if actor is None else actor.process


def _in_turn(items: Any) -> Any:
    yield from items


def _in_order(function: Any, things: Any, *, at_once: bool) -> list[Any]:
    return list(map(function, things))


def _everywhere(stack: ExitStack, original: Any, replacement: Any) -> None:
    """Replace a function in every module that has imported it."""
    for module, attribute in _imports_of(original, len(sys.modules)):
        stack.enter_context(patch.object(module, attribute, replacement))


@cache
def _imports_of(original: Any, modules: int) -> list[tuple[types.ModuleType, str]]:
    """Return where a function was imported, as long as there are so many modules."""
    del modules
    return [
        (module, attribute)
        for name, module in list(sys.modules.items())
        if name.startswith("pyspark_ckpt")
        for attribute, value in list(vars(module).items())
        if value is original
    ]


@contextmanager
def simulated(
    scheduler: Scheduler, disk: Disk, bucket: Bucket, pointers: dict[str, SharedPointers]
) -> Iterator[None]:
    """Run the library over simulated parts while the context lasts."""
    threads = threads_of(scheduler)
    names = scheduler.chance

    def wait(futures: list[Future[Any]], timeout: float | None = None) -> Any:
        (future,) = futures
        is_done = scheduler.wait(future.done, None if timeout is None else 1000 * timeout)
        return types.SimpleNamespace(done=futures if is_done else [])

    def pointers_of(kind: Any, node: str, quorum: str) -> SimulatedPointers:
        shared = pointers.setdefault(node, SharedPointers())
        return SimulatedPointers(scheduler, shared, bucket.fails)

    def stored_handles(_: Any, log: SparkLog, epoch: int, *__: Any) -> list[Handle]:
        files = SparkFiles(disk, log.storage.url)
        number_of = bound_parallelism(log.storage) or 0
        found = (files.handle(number, epoch + 1) for number in range(number_of))
        return [handle for handle in found if handle is not None]

    sleeping = types.SimpleNamespace(sleep=lambda seconds: scheduler.sleep(1000 * seconds))

    def write_seeds(spark: Any, scratch: Storage, seeds: Sequence[Seed]) -> SparkLog:
        log = SparkLog(scratch.child("location"))
        files = SparkFiles(disk, log.storage.url)
        scheduler.point("Spark writes the seeds")
        files.write_offsets(0, 0, seeds[0].operator.parallelism)
        files.commit(0)
        for seed in seeds:
            for number in range(seed.operator.parallelism):  # each partition commits a version
                files.write_version(number, 1, None)
            for handle in seed.handles:
                files.write_handle(handle.subtask, 1, handle)
        return log

    def move_state(
        spark: Any, operator: Any, source: Storage, target: Storage, *names: Any, **_: Any
    ) -> list[Handle]:
        scheduler.point("Spark moves the state")
        return rewrites.run(rewrite_of(operator, source.url, target.url, *names))

    DiskPath.disk = disk
    BucketStorage.bucket = bucket
    fake_os, fake_shutil = DiskOs(disk), DiskShutil(disk)
    replaced: list[tuple[Any, str, Any]] = [
        (local, "os", fake_os),
        (local, "shutil", fake_shutil),
        (local, "Path", DiskPath),
        (local, "_durable_directories", _OfEachProcess()),
        (mount, "os", fake_os),
        (opening, "Path", DiskPath),
        (stores, "_pointers", pointers_of),
        (canonical_file, "read_ahead", _in_turn),
        (runner, "threading", threads),
        (listener, "threading", threads),
        (cleaning, "threading", threads),
        (taker, "threading", threads),
        (taker, "_thread_class", lambda: threads.Thread),
        (time_limit, "threading", threads),
        (time_limit, "queue", queue_of(scheduler)),
        (time_limit, "wait", wait),
        (time_limit.in_time, "__defaults__", (threads.Thread,)),
        (local_snapshots, "fcntl", file_locks_of(scheduler)),
        (local_snapshots, "threading", threads),
        (local_snapshots, "queue", queue_of(scheduler)),
        (retrying, "time", sleeping),
        (s3, "time", sleeping),
        (s3, "random", names),
        (seeding, "write_seeds", write_seeds),
        (facts, "read_handles", stored_handles),
        (seeding, "move_state", move_state),
        (staging, "move_state", move_state),
        (rollback, "session_in_use", lambda *given: None),
        (rollback_decision, "_missing_input", lambda *given: None),
        (rollback, "qualified_path", lambda spark, path: path),
        (ClassicSession, "is_active", lambda self, query_id: False),
        (rollback, "own_session", lambda spark, conf: None),
        (staging, "own_session", lambda spark, conf: None),
        (secrets, "token_hex", lambda size=32: f"{names.getrandbits(8 * size):0{2 * size}x}"),
        (uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))),
    ]
    with ExitStack() as stack:
        for owner, name, replacement in replaced:
            stack.enter_context(patch.object(owner, name, replacement))
        stack.enter_context(patch.dict(opening._OPENERS, {"s3": lambda rest: BucketStorage(rest)}))
        row = registry._Backend(FileBackend)  # type: ignore[arg-type]
        stack.enter_context(patch.dict(registry._BACKENDS, {"heap": row}))
        _everywhere(stack, clock.now_ms, lambda: scheduler.now_ms)
        _everywhere(stack, clock.monotonic_ms, lambda: scheduler.now_ms)
        _everywhere(stack, base.all_of, _in_order)
        _everywhere(stack, base.path_parts, lru_cache(100_000)(base.path_parts))
        yield
