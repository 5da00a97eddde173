"""A snapshot that somebody reads does not vanish, while its query retains one checkpoint only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from subprocess import PIPE
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.storage.local import LocalStorage
from tests.query.harness import BACKEND, OFTEN, RETAINED, Job, await_checkpoint
from tests.query.model import Count, events_of

ROWS = 20
IMAGES = {
    "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "1",
}
"""Images of the state replace its changes soon, so that nothing needs the first files."""

_READS = """
import json, sys
import pyspark_ckpt as ckpt
for _ in sys.stdin:
    with ckpt.location(sys.argv[1]).state() as snapshot:
        print(json.dumps([snapshot.epoch, snapshot.path]), flush=True)
        sys.stdin.readline()
        frame = snapshot.state("op", "count").to_pandas()
        one = snapshot.state("op", "count").get("k1")
        print(json.dumps([dict(zip(frame["k"], frame["n"])), one]), flush=True)
"""


class Reader:
    """A process that opens the newest checkpoint, and reads it when the test says so."""

    def __init__(self, location: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _READS, str(location)], stdin=PIPE, stdout=PIPE, text=True
        )

    def say(self) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def counts_until(epoch: int) -> dict[str, int]:
    keys = [key for number in range(epoch + 1) for key, _ in events_of(number, ROWS)]
    return dict(Counter(keys))


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_readers_of_subsumed_checkpoints(job: Job, backend: str) -> None:
    """Some read late, some are killed; each reads exactly the epoch that it opened."""
    job = job.but(processor=Count, output="k string, n long")
    job = job.using({BACKEND: backend, RETAINED: 1, **OFTEN, **IMAGES})
    directory = LocalStorage(job.checkpoint_path)

    def pins() -> list[str]:
        return [name for name in directory.list() if name.startswith("_reader")]

    epoch = 0
    with job.running() as query:

        def next_epoch() -> None:
            nonlocal epoch
            job.feed.add(events_of(epoch, ROWS))
            query.processAllAvailable()
            await_checkpoint(query, epoch)
            epoch += 1

        next_epoch()
        late, killed = Reader(job.location_path), Reader(job.location_path)
        opened, path = late.say()
        killed.say()
        before = set(directory.list("taskowned"))
        killed.kill()
        assert len(pins()) == 2, "also that of the dead reader, until it is over"
        for _ in range(8):
            next_epoch()
            with ckpt.location(str(job.location_path)).state() as snapshot:
                frame = snapshot.state("op", "count").to_pandas()
                assert dict(zip(frame["k"], frame["n"], strict=True)) == counts_until(
                    snapshot.epoch
                )
        assert not directory.exists(f"{path.rpartition('/')[2]}/_metadata"), "it was subsumed"
        assert before <= set(directory.list("taskowned")), "what the readers pinned stays"
        read, one = late.say()
        assert read == counts_until(opened)
        assert one == {"n": read["k1"]}
        late.end()
        (left,) = pins()
        over = left.replace(left.split("-")[1], "0" * 15)  # as if its time had passed
        (job.checkpoint_path / left).rename(job.checkpoint_path / over)
        next_epoch()
        next_epoch()
        assert pins() == []
        assert not before & set(directory.list("taskowned")), "nobody needs them any more"


@pytest.mark.soak
def test_readers_that_come_while_checkpoints_go(job: Job) -> None:
    """Each reader that opens a checkpoint reads all of it; one that comes too late is refused."""
    job = job.but(processor=Count, output="k string, n long").using({RETAINED: 1, **OFTEN})
    reads = 0
    with job.running() as query:
        for epoch in range(12):
            job.feed.add(events_of(epoch, ROWS))
            while query.lastProgress is None or query.lastProgress.batchId < epoch:
                try:
                    with ckpt.location(str(job.location_path)).state() as snapshot:
                        frame = snapshot.state("op", "count").to_pandas()
                        found = dict(zip(frame["k"], frame["n"], strict=True))
                        assert found == counts_until(snapshot.epoch)
                        reads += 1
                except ckpt.errors.CheckpointNotFoundError:
                    pass  # there is none yet, or it went between the listing and the pin
                assert query.isActive
    print(f"{reads} reads")
    assert reads > 12
