"""A fork gets the epochs of the query: offsets, time and file logs; its watermark is its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.shadowing.followed import FollowedQuery, begin_epoch
from pyspark_ckpt.spark.log import SOURCE_EVOLUTION, SparkLog
from pyspark_ckpt.storage.open import LocalStorage

FILE = '{"logOffset":%d}'
ID = "00000000-0000-0000-0000-00000000000a"


def offsets(
    epoch: int, *values: str, version: str = "v1", parallelism: int = 2, **conf: str
) -> str:
    metadata = {
        "batchWatermarkMs": epoch * 10,
        "batchTimestampMs": epoch * 1000,
        "conf": {"spark.sql.shuffle.partitions": str(parallelism), **conf},
    }
    return "\n".join([version, json.dumps(metadata), *values])


def commit(watermark_ms: int) -> str:
    return f'v1\n{{"nextBatchWatermarkMs":{watermark_ms}}}'


def identity(query_id: str) -> str:
    return json.dumps({"id": query_id})


class Location:
    def __init__(self, path: Path) -> None:
        self.storage = LocalStorage(path)

    def put(self, **files: str) -> None:
        for name, text in files.items():
            self.storage.write(name.replace("__", "/"), [text.encode()])

    def entry(self, epoch: int) -> tuple[dict[str, Any], list[str]]:
        _, metadata, *values = self.storage.read(f"offsets/{epoch}").decode().split("\n")
        return json.loads(metadata), values


@pytest.fixture
def query(tmp_path: Path) -> Location:
    made = Location(tmp_path / "query")
    made.put(metadata=identity(ID))
    return made


@pytest.fixture
def fork(tmp_path: Path) -> Location:
    """A fork with other subtasks, whose newest epoch is 4."""
    made = Location(tmp_path / "fork")
    made.put(offsets__4=offsets(4, FILE % 1, "7", parallelism=3), commits__4=commit(44))
    return made


def test_an_epoch_is_followed_as_it_was(query: Location, fork: Location) -> None:
    query.put(
        offsets__4=offsets(4, FILE % 1, "7"), commits__4=commit(50),
        offsets__5=offsets(5, FILE % 3, "9"),
        sources__0__0="v1\na", sources__0__1="v1\nb", sources__0__2="v1\nc", sources__0__3="v1\nd",
        sources__0__4="v1\nof a later epoch", sources__1__0="v1\nrate",
    )  # fmt: skip
    fork.put(sources__0__0="v1\na")
    followed = FollowedQuery(SparkLog(query.storage), ID, (0, 1), (), after=4)
    assert followed.next() is None  # it is not committed
    query.put(commits__5=commit(60))
    epoch = followed.next()
    assert epoch is not None
    assert followed.next() is None
    begin_epoch(fork.storage, epoch, (0, 1))
    metadata, values = fork.entry(5)
    assert values == [FILE % 3, "9"]
    assert metadata == {
        "batchWatermarkMs": 44,
        "batchTimestampMs": 5000,
        "conf": {"spark.sql.shuffle.partitions": "3"},
    }
    assert fork.storage.list("sources/0") == ["0", "1", "2", "3"]
    assert fork.storage.list("sources/1") == ["0"]
    begin_epoch(fork.storage, epoch, (0, 1))  # a fork that did not commit it runs it again
    assert fork.entry(5) == (metadata, values)


def test_a_source_at_more_places_and_in_format_v2(query: Location, fork: Location) -> None:
    query.put(offsets__5=offsets(5, "9"), commits__5=commit(60), sources__0__0="v1\nrate")
    epoch = FollowedQuery(SparkLog(query.storage), ID, (0,), (), after=4).next()
    assert epoch is not None
    begin_epoch(fork.storage, epoch, (0, 0))
    assert fork.entry(5)[1] == ["9", "9"]
    other = Location(Path(fork.storage.root).with_name("other"))
    other.put(offsets__4=offsets(4, "0:7", "1:7", version="v2"), commits__4=commit(44))
    begin_epoch(other.storage, epoch, (0, 0))
    assert other.entry(5)[1] == ["0:9", "1:9"]


def test_named_sources_keep_their_names(query: Location, fork: Location) -> None:
    named = {SOURCE_EVOLUTION: "true"}
    query.put(
        offsets__5=offsets(5, "b:9", "a:8", version="v2", **named), commits__5=commit(60),
        sources__a__0="v1\nrate", sources__b__0="v1\nrate",
    )  # fmt: skip
    epoch = FollowedQuery(SparkLog(query.storage), ID, (0, 1), ("a", "b"), after=4).next()
    assert epoch is not None
    other = Location(Path(fork.storage.root).with_name("other"))
    other.put(offsets__4=offsets(4, "b:1", "a:1", version="v2", **named), commits__4=commit(44))
    begin_epoch(other.storage, epoch, (0, 1))
    assert sorted(other.entry(5)[1]) == ["a:8", "b:9"]


def test_an_epoch_that_spark_has_deleted(query: Location) -> None:
    query.put(commits__9=commit(60), offsets__9=offsets(9, "1"))
    followed = FollowedQuery(SparkLog(query.storage), ID, (0,), (), after=4)
    gone = r"epoch 5 can no longer.*began at an old checkpoint: trigger one.*minBatches"
    with pytest.raises(ckpt.errors.CheckpointAbortedError, match=gone):
        followed.next()
    query.put(
        offsets__5=offsets(5, "1"), commits__5=commit(60),
        offsets__7=offsets(7, "1"), sources__0__0="v1\nrate",
    )  # fmt: skip
    assert followed.next() is not None
    with pytest.raises(
        ckpt.errors.CheckpointAbortedError, match=r"epoch 6 can no longer.*too slow"
    ):
        followed.next()


class RolledBackBetween(LocalStorage):
    """A location whose content is swapped while one of its files is read."""

    query: Location
    at = ""

    def read(self, relative: str) -> bytes:
        content = super().read(relative)
        if relative == self.at:
            self.at = ""
            roll_back(self.query)
        return content


def roll_back(query: Location) -> None:
    """Put a location back to epoch 4, and run other epochs 5 to 7 there."""
    for epoch in (5, 6, 7):
        for directory in ("offsets", "commits", "sources/0"):
            query.storage.delete([f"{directory}/{epoch}"])
    query.storage.delete(["metadata"])
    run(query, "00000000-0000-0000-0000-00000000000b", "other", 7)


def run(query: Location, query_id: str, file: str, last: int) -> None:
    query.put(metadata=identity(query_id))
    for epoch in range(5, last + 1):
        query.put(
            **{f"offsets__{epoch}": offsets(epoch, FILE % epoch)},
            **{f"commits__{epoch}": commit(0), f"sources__0__{epoch}": f"v1\n{file}{epoch}"},
        )


@pytest.mark.parametrize("last", [5, 6])
def test_a_query_that_was_rolled_back(tmp_path: Path, last: int) -> None:
    """Its new epochs have the numbers of the void ones, whether they were followed or not."""
    query = Location(tmp_path)
    query.put(**{f"sources__0__{number}": "v1\nold" for number in range(5)})
    run(query, ID, "void", last)
    followed = FollowedQuery(SparkLog(query.storage), ID, (0,), (), after=4)
    first = followed.next()
    assert first is not None
    assert first.epoch == 5
    roll_back(query)
    with pytest.raises(
        ckpt.errors.CheckpointAbortedError, match=rf"{ID} was rolled back.*begin another"
    ):
        followed.next()


@pytest.mark.parametrize("at", ["offsets/5", "sources/0/5"])
def test_a_query_that_is_rolled_back_while_an_epoch_is_read(tmp_path: Path, at: str) -> None:
    query = Location(tmp_path)
    query.put(**{f"sources__0__{number}": "v1\nold" for number in range(5)})
    run(query, ID, "void", 7)
    storage = RolledBackBetween(tmp_path)
    storage.query, storage.at = query, at
    with pytest.raises(ckpt.errors.CheckpointAbortedError, match="was rolled back"):
        FollowedQuery(SparkLog(storage), ID, (0,), (), after=4).next()


def test_a_fork_of_another_epoch_is_refused(query: Location, fork: Location) -> None:
    query.put(offsets__6=offsets(6, "9"), commits__6=commit(60), sources__0__0="v1\nrate")
    epoch = FollowedQuery(SparkLog(query.storage), ID, (0,), (), after=5).next()
    assert epoch is not None
    with pytest.raises(ckpt.errors.CkptError, match=r"has committed epoch 4, not 5"):
        begin_epoch(fork.storage, epoch, (0,))
