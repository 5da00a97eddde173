"""A query without Spark in a process that is killed at any moment; the next one continues it.

``python crash_loop_program.py DIRECTORY BACKEND SEED`` forks a process of the query for each line
that it reads, prints its id, and prints ``ended`` when it is dead. The query prints each checkpoint
that it took and its epoch. A fork needs no import of the library, so many deaths take little time.
The handles, which Spark's state store would have, are in a file for each epoch.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[2]))

from pyspark_ckpt.formats.handle import Handle, decode_handle, encode_handle
from pyspark_ckpt.settings import Materialization
from tests.faults.keyed_query import KEYS, UIDS, KeyedQuery, Model, by_subtask

PARALLELISM = 2
EVERY_FEW = Materialization(interval_ms=10**15, min_changelog_bytes=10**15, max_segments=3)

Writes = dict[str, dict[str, bytes | None]]


def writes_of(seed: int, epoch: int) -> Writes:
    """Return what an epoch writes; it is the same however often the epoch runs."""
    chance = random.Random(seed * 1_000_003 + epoch)
    writes: Writes = {uid: {} for uid in UIDS}
    for uid, share in zip(UIDS, (1.0, 0.2), strict=True):
        if chance.random() < share:
            for key in chance.sample(KEYS, 3):
                writes[uid][key] = chance.randbytes(90) if chance.random() < 0.8 else None
    return writes


def models_of(seed: int) -> Iterator[Model]:
    """Yield the state after each epoch."""
    model: Model = {uid: {} for uid in UIDS}
    epoch = 0
    while True:
        for uid, its in writes_of(seed, epoch).items():
            changed = {**model[uid], **its}
            model[uid] = {key: value for key, value in changed.items() if value is not None}
        yield {uid: dict(values) for uid, values in model.items()}
        epoch += 1


def run(root: Path, backend: str, seed: int) -> None:
    """Run epochs, each with a checkpoint, until the process dies."""
    query = KeyedQuery(root, PARALLELISM, backend)
    kept = root / "handles"
    kept.mkdir(exist_ok=True)
    _load(query, kept)
    run_id = str(os.getpid())
    while True:
        epoch = 0 if query.epoch is None else query.epoch + 1
        writes = writes_of(seed, epoch)
        made: dict[str, dict[int, Handle]] = {}
        for uid, place, changes in by_subtask(query, writes):
            subtask = query.subtask(uid, place)
            subtask.settings, subtask.run_id = EVERY_FEW, run_id
            assert subtask.uploads is not None
            for waiting in list(subtask.uploads.waiting):
                subtask.uploads.step(waiting)
            made.setdefault(uid, {})[place] = subtask.call(epoch, changes)
        _keep(query, made, kept / str(epoch))
        query.commit(writes, made)
        if query.take():
            print("taken", max(query.complete), epoch, flush=True)


def _keep(query: KeyedQuery, made: dict[str, dict[int, Handle]], path: Path) -> None:
    handles = {uid: {**query.handles.get(uid, {}), **made.get(uid, {})} for uid in UIDS}
    encoded = [
        encode_handle(handle) for by_place in handles.values() for handle in by_place.values()
    ]
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(msgspec.msgpack.encode(encoded))
    hidden.rename(path)


def _load(query: KeyedQuery, kept: Path) -> None:
    """Load what was committed; a later file is of an epoch that was not committed."""
    commits = (query.spark.location / "commits").glob("*")
    epoch = max((int(path.name) for path in commits), default=None)
    if epoch is None:
        return
    held: dict[str, dict[int, Handle]] = {uid: {} for uid in UIDS}
    for data in msgspec.msgpack.decode((kept / str(epoch)).read_bytes(), type=list[bytes]):
        handle = decode_handle(data)
        held[handle.uid][handle.subtask] = handle
    query.committed[epoch], query.models[epoch] = held, {uid: {} for uid in UIDS}


def main(root: Path, backend: str, seed: int) -> None:
    for _ in sys.stdin:
        process = os.fork()
        if not process:
            os.close(0)
            run(root, backend, seed)
        print("process", process, flush=True)
        os.waitpid(process, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
