"""A query without Spark with real state: keys in subtasks of two operators, and a model.

Subtasks run epochs with the library's backends, barrier and base snapshots. Its runner gathers,
checks and cleans, savepoints are written and forks are seeded by its own code, redistribution
included. What Spark does between these steps is done here: it commits handles and sorts entries by
subtask. The model is a dict of values by key for each operator and each epoch.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from pyspark_ckpt.checkpoint.contents import gather
from pyspark_ckpt.checkpoint.handles import checked_handles
from pyspark_ckpt.checkpoint.machine import Refusal
from pyspark_ckpt.checkpoint.machine import Subtask as SubtaskName
from pyspark_ckpt.checkpoint.query_files import QueryFiles
from pyspark_ckpt.checkpoint.runner import CheckpointRunner
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.metadata import EpochContents
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.history.records import CompletedCheckpoint
from pyspark_ckpt.operator.descriptor import OperatorDescriptor
from pyspark_ckpt.restore.copies import HandleCopy
from pyspark_ckpt.restore.plan import RestoreRequest, plan_of
from pyspark_ckpt.restore.planned import CopiedOperator, MovedOperator
from pyspark_ckpt.restore.rescale import rewrite_of
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.restore.spark_files import place_source_logs
from pyspark_ckpt.savepoint.savepoint import write_savepoint
from pyspark_ckpt.settings import Materialization, Settings
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.spark.plan import StatefulOperators
from pyspark_ckpt.storage.open import LocalStorage, Storage
from tests import rewrites
from tests.faults.epochs import SparkFiles
from tests.faults.faulty_storage import FaultyStorage, Plan
from tests.unit.operator.materialized_subtask import MaterializedSubtask, Writes

Model = dict[str, dict[str, bytes]]
"""The values of keys, by operator."""

UIDS = ("count", "rare")
KEYS = tuple("abcdefgh")
MAX_PARALLELISM = 8
RETAINED = 2
MOST_APART = 5
"""For so many epochs in a row two attempts may start from their own handles."""

_TEXT = '{"type":"struct","fields":[{"name":"s","type":"string","nullable":true,"metadata":{}}]}'
_STATES = (StateDescriptor("last", "value", _TEXT),)
_INLINE_BYTES = {"count": 0, "rare": 60}


@dataclass
class Faults(Plan):
    """The faults as a plan; with `is_final`, everything fails from the operation on."""

    is_final: bool = False

    def is_due(self, operation: str) -> bool:
        is_due = super().is_due(operation)
        return is_due or (self.is_final and self.was_hit)

    def set(self, index: int, fault: str = "before", *, is_final: bool = False) -> None:
        """Let the operation after `index` others have the fault."""
        self.index, self.fault, self.is_final = len(self.done) + index, fault, is_final

    def clear(self) -> None:
        """Let nothing fail any more."""
        self.index, self.is_final = None, False


def key_group_of(key: str) -> int:
    """In the place of Spark's hash."""
    return zlib.crc32(key.encode()) % MAX_PARALLELISM


def stored_key(key: str) -> bytes:
    return key_group_of(key).to_bytes(2, "big") + b"\0" + msgspec.msgpack.encode((key,))


@dataclass(frozen=True)
class Call:
    """The work of a subtask in an epoch.

    Parameters
    ----------
    epoch
        Its number.
    line
        The handle that was committed and the handles that led to it, oldest first.
    written
        The files of all its attempts, and what uploads finished since then.
    """

    epoch: int
    line: tuple[Handle, ...]
    written: set[str]


class Subtask(MaterializedSubtask):
    """A subtask; Spark may run its epochs twice, and start from the handle that did not count.

    `line` are the committed handle and the handles that led to it, oldest first: each call began
    from the handle before its own. `loser_line` leads to the handle that did not count.
    """

    has_begun = False
    line: tuple[Handle, ...] = ()
    loser_line: tuple[Handle, ...] = ()
    calls: list[Call]
    first: Handle

    @property
    def loser(self) -> Handle | None:
        """The handle of the attempt that did not count, if an executor may still have it."""
        return self.loser_line[-1] if self.loser_line else None

    def attempt(self, writes: Writes) -> Handle:
        made = super().attempt(writes)
        if self.has_begun:
            return made
        return msgspec.structs.replace(made, predecessors=())

    def call(
        self,
        number: int,
        writes: Writes,
        *,
        twin: bool = False,
        from_loser: bool = False,
        lasting: bool = True,
        twin_settings: Materialization | None = None,
    ) -> Handle:
        """Run an epoch; with a `twin`, another executor runs it too and its handle is lost.

        The twin may find other things due. A process that is not `lasting` uploads at once. Both
        start from handles that have one of the last epochs in common: the two attempts at an epoch
        have not been apart for longer than the library covers.
        """
        self.number = number - 1
        committed, here = self.handle, self.directory
        settings, uploads = self.settings, self.uploads
        line = self.loser_line if from_loser and self.loser_line else self.line
        loser_line: tuple[Handle, ...] = ()
        try:
            if twin:
                is_near = self.loser_line and any(
                    self.loser_line[-1 - apart : -apart] == line[-1 - apart : -apart]
                    for apart in range(1, MOST_APART)
                )
                start = self.loser_line if is_near else line
                self.handle = start[-1] if start else committed
                self.directory = here.with_name(f"{here.name} elsewhere")
                self.settings = twin_settings or settings
                loser_line = (*start, self.attempt(writes))
                self.directory, self.settings = here, settings
            self.handle = line[-1] if line else committed
            self.uploads = uploads if lasting else None
            made = self.epoch(writes)
        except (OSError, CkptError):
            self.handle, self.directory, self.settings = committed, here, settings
            raise
        finally:
            self.uploads = uploads
        self.line, self.loser_line = (*line, made), loser_line
        self.has_begun = True
        return made

    def begin_anew(self) -> None:
        """Forget an epoch that Spark did not commit: the subtask has no handle yet."""
        self.handle = self.first
        self.has_begun = False

    def lose_processes(self, *, copies_too: bool) -> None:
        """Let the executor die."""
        self.loser_line = ()
        if self.uploads is not None:
            self.uploads.waiting.clear()
        if copies_too:
            for directory in (self.directory, *self.directory.parent.glob("* elsewhere")):
                shutil.rmtree(directory, ignore_errors=True)


@dataclass
class KeyedQuery:
    """A query, its directories, and its state after each epoch.

    Parameters
    ----------
    root
        For the ``checkpointLocation``, the checkpoints, the savepoints and the executors' copies.
    parallelism, backend
        Of both operators.
    retained
        How many checkpoints are.
    """

    root: Path
    parallelism: int
    backend: str
    retained: int = RETAINED
    models: dict[int, Model] = field(default_factory=dict)
    committed: dict[int, dict[str, dict[int, Handle]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.query_id = self.root.name
        self.spark = SparkFiles(self.root / "location", self.query_id)
        self.storage = LocalStorage(self.root / "checkpoints")
        self.faults, self.task_faults = Faults(), Faults()
        self.subtasks: dict[tuple[str, int], Subtask] = {}
        self.complete: dict[int, int] = {}
        self.unpublished: set[int] = set()
        """Ids of this run whose attempts have failed, perhaps while they were published."""

        self.savepoints: dict[Path, int] = {}
        self.starts = 0
        self.operators = StatefulOperators(
            tuple(
                OperatorDescriptor(
                    uid=uid, parallelism=self.parallelism, max_parallelism=MAX_PARALLELISM,
                    key_schema=_TEXT,
                )
                for uid in UIDS
            )
        )  # fmt: skip
        self.start()

    @property
    def epoch(self) -> int | None:
        """The newest committed epoch."""
        return max(self.models, default=None)

    @property
    def model(self) -> Model:
        """Return the state."""
        return self.models[max(self.models)] if self.models else {uid: {} for uid in UIDS}

    @property
    def handles(self) -> dict[str, dict[int, Handle]]:
        """The committed handles of the newest epoch, by operator and subtask."""
        return self.committed[max(self.committed)] if self.committed else {}

    def start(self) -> None:
        """Start a driver."""
        self.starts += 1
        self.faults.clear()
        storage = FaultyStorage(self.storage, self.faults)
        self.files = QueryFiles(
            checkpoint_location=str(self.spark.location),
            spark_log=SparkLog(LocalStorage(self.spark.location)),
            storage=storage,
            query_id=self.query_id,
            query_name=None,
            backend_type=self.backend,
            operators=self.operators,
            source_ids=(0,),
        )
        names = frozenset(SubtaskName(uid, n) for uid in UIDS for n in range(self.parallelism))
        settings: dict[str, Any] = {
            "num_retained": self.retained,
            "interval_ms": 3_600_000,
            "tolerable_failed_checkpoints": 1000,
        }
        self.runner = CheckpointRunner(
            self.query_id, names, storage, Settings(**settings), self.gathered
        )

    def gathered(self, epoch: int) -> EpochContents:
        """Gather an epoch as a driver does."""

        def handles_of(operator_id: int) -> tuple[Handle, ...]:
            held = self.committed[epoch].get(UIDS[operator_id], {})
            by_subtask = [held[number] for number in sorted(held)]
            return checked_handles(self.files, epoch, operator_id, by_subtask)

        return gather(self.files, epoch, "4.3.0", handles_of)

    def subtask(self, uid: str, number: int) -> Subtask:
        """Return a subtask, which begins from the handle that Spark committed for it."""
        if (uid, number) not in self.subtasks:
            descriptor = next(each for each in self.operators.descriptors if each.uid == uid)
            first = descriptor.first_handle(self.query_id, number, 0)
            first = msgspec.structs.replace(first, states=_STATES)
            handle = self.handles.get(uid, {}).get(number)
            subtask = Subtask(
                self.root / "executor" / uid / str(number),
                self.backend,
                FaultyStorage(self.storage, self.task_faults),
                handle or first,
                inline_bytes=_INLINE_BYTES[uid],
            )
            subtask.calls, subtask.first = [], first
            if handle is not None:
                subtask.line = (handle,)
                subtask.calls.append(Call(handle.epoch, subtask.line, set()))
            subtask.has_begun = handle is not None
            self.subtasks[uid, number] = subtask
        return self.subtasks[uid, number]

    def commit(self, writes: Mapping[str, Mapping[str, bytes | None]], made: Any) -> None:
        """Have Spark commit an epoch with the handles that its subtasks made."""
        epoch = 0 if self.epoch is None else self.epoch + 1
        model = {uid: dict(values) for uid, values in self.model.items()}
        for uid, its in writes.items():
            model[uid].update({key: value for key, value in its.items() if value is not None})
            for key in [key for key, value in its.items() if value is None]:
                model[uid].pop(key, None)
        before = self.handles
        self.spark.commit(epoch)
        self.committed[epoch] = {uid: {**before.get(uid, {}), **made.get(uid, {})} for uid in UIDS}
        self.models[epoch] = model

    def savepoint(self, savepoint_format: SavepointFormat) -> Path:
        """Write a savepoint of the newest epoch."""
        assert self.epoch is not None
        directory = self.root / "savepoints"
        directory.mkdir(exist_ok=True)
        snapshot = self.gathered(self.epoch)
        made = write_savepoint(snapshot, self.storage, str(directory), savepoint_format)
        self.savepoints[Path(made.path)] = self.epoch
        return Path(made.path)

    def ids(self) -> set[int]:
        """Return the ids that have a directory, complete or not."""
        return {int(path.name.removeprefix("chk-")) for path in self.storage.root.glob("chk-*")}

    def checkpoints(self) -> dict[int, Path]:
        """Return the directories of the complete checkpoints, oldest first."""
        found = {
            int(path.parent.name.removeprefix("chk-")): path.parent
            for path in self.storage.root.glob("chk-*/_metadata")
            if (path.parent / "_author").exists()
        }
        return dict(sorted(found.items()))

    def state_files(self) -> set[str]:
        """Return the paths of the files that tasks and snapshots wrote."""
        return {
            f"{directory}/{path.name}"
            for directory in ("shared", "taskowned")
            for path in (self.storage.root / directory).glob("*")
        }

    def take(self) -> bool:
        """Take a checkpoint; there is none of an epoch that has one."""
        taken = self.runner.take(lambda: self.epoch, periodic=False)
        if isinstance(taken, CompletedCheckpoint):
            self.complete[taken.checkpoint_id] = taken.epoch
            return True
        assert taken is Refusal.NO_NEW_EPOCH, taken
        return False


def by_subtask(
    query: KeyedQuery, writes: Mapping[str, Mapping[str, bytes | None]]
) -> Iterator[tuple[str, int, dict[bytes, bytes | None]]]:
    """Yield the writes of each subtask that gets rows; the others are idle."""
    for uid, its in writes.items():
        for place in sorted({subtask_of(key, query.parallelism) for key in its}):
            yield (
                uid,
                place,
                {
                    stored_key(key): value
                    for key, value in its.items()
                    if subtask_of(key, query.parallelism) == place
                },
            )


def subtask_of(key: str, parallelism: int) -> int:
    return key_group_of(key) * parallelism // MAX_PARALLELISM


def fork(
    path: Path, root: Path, model: Model, parallelism: int, backend: str, faults: Faults
) -> KeyedQuery:
    """Seed a new query from a checkpoint or savepoint."""
    source = RestoreSource(str(path))
    query = KeyedQuery(root, parallelism, backend)
    plan = plan_of(source, query.operators, RestoreRequest(source.path))
    plan.check()
    epoch = plan.epoch
    copies = FaultyStorage(query.storage, faults)
    handles: dict[str, dict[int, Handle]] = {}
    for operator in plan.started:
        if isinstance(operator, MovedOperator):
            made = moved(source.storage, query.storage, operator, query.query_id, epoch)
        else:
            assert isinstance(operator, CopiedOperator)
            copy = HandleCopy(operator.wanted, query.query_id, epoch)
            copied = {
                each.file.path: each.made(source.storage, copies)
                for each in chain(*copy.files_of(operator.handles))
            }
            made = [copy.of(each, copied) for each in operator.handles]
        handles[operator.uid] = {handle.subtask: handle for handle in made}
    place_source_logs(source.storage, LocalStorage(query.spark.location), plan.sources)
    query.spark.commit(epoch)
    query.committed[epoch], query.models[epoch] = handles, model
    return query


def moved(
    source: Storage,
    target: Storage,
    operator: MovedOperator,
    query_id: str,
    epoch: int,
) -> list[Handle]:
    """Move an operator with the functions of the Spark job."""
    return rewrites.run(rewrite_of(operator, source.url, target.url, query_id, epoch))
