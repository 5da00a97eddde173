"""What driver and executor both know of an operator.

Fingerprints of its code and schemas distinguish versions of a query. They are for people and for
lineage; no restore is refused because of them.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from enum import Enum
from types import CodeType
from typing import Any

import msgspec

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.handle import Handle, StateDescriptor
from pyspark_ckpt.formats.location_files import RolledBack
from pyspark_ckpt.formats.metadata import OperatorMetadata
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.settings import HandOver, Materialization
from pyspark_ckpt.storage.base import FileReference

DEFAULT_UID = "operator"
"""The uid of an operator that was built without one; its states are stored under it."""


class MigrationDescriptor(msgspec.Struct, frozen=True):
    """What a user's migration has, without its functions."""

    value: bool
    key: bool
    renamed_from: str | None

    @classmethod
    def of(cls, migration: Migration) -> MigrationDescriptor:
        """Describe a migration."""
        return cls(migration.value is not None, migration.key is not None, migration.renamed_from)


class OnError(str, Enum):
    """What happens to a key for which the processor raises."""

    FAIL = "fail"
    QUARANTINE = "quarantine"

    __str__ = str.__str__


class QuarantineLimits(msgspec.Struct, frozen=True):
    """How much of quarantined keys is kept: keys of a subtask, rows and bytes of a key."""

    keys: int = 1_000
    rows_per_key: int = 10_000
    bytes_per_key: int = 16 * 1024**2


class CaptureOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Epochs that are captured, from the first to the last, of an operator or of all."""

    first: int
    last: int
    uid: str | None = None


class Captures(msgspec.Struct, frozen=True, kw_only=True):
    """What is captured in a run of a query, which began at `run_started_ms`.

    With `on_failure`, a task whose processor raises writes what it saw of the failing key, also if
    it quarantines the key. Of a subtask's epoch at most `limit_bytes` are kept.
    """

    orders: tuple[CaptureOrder, ...] = ()
    on_failure: bool = False
    limit_bytes: int = 64 * 1024**2
    run_started_ms: int = 0

    def wants(self, uid: str, epoch: int) -> bool:
        """Return whether an epoch of an operator is captured."""
        return any(
            order.first <= epoch <= order.last and order.uid in (None, uid) for order in self.orders
        )


class OperatorDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """One stateful operator as the query was built.

    It is in the metadata of the token column. So at ``start()`` the driver reads from the plan
    which operators a query has, also if other operations follow. `processor` and `code_sha256`
    identify the code. `passes_watermark` says whether operators that follow in event time have a
    watermark. `initial_state` is the name under which
    :mod:`pyspark_ckpt.operator.plan.initial_state` keeps the initial state. `hand_over` is the way
    that rows are handed over, with the reason.
    """

    uid: str
    has_default_uid: bool = False
    parallelism: int
    max_parallelism: int
    key_schema: str
    time_mode: TimeMode = TimeMode.NONE
    states: tuple[StateDescriptor, ...] = ()
    migrations: dict[str, MigrationDescriptor] = {}
    initial_state: str | None = None
    processor: str = ""
    code_sha256: str = ""
    passes_watermark: bool = False
    on_error: OnError = OnError.FAIL
    hand_over: HandOver = HandOver.ARROW
    why_hand_over: str = ""

    @classmethod
    def of(
        cls, stored: OperatorMetadata, states: tuple[StateDescriptor, ...] = ()
    ) -> OperatorDescriptor:
        """Return a stored operator as the query had it that stored it, with some states."""
        return cls(
            uid=stored.uid,
            parallelism=stored.parallelism,
            max_parallelism=stored.max_parallelism,
            key_schema=stored.key_schema,
            time_mode=stored.time_mode,
            states=states,
            processor=stored.processor,
            code_sha256=stored.code_sha256,
        )

    def stored(
        self, operator_id: int, backend: str, handles: tuple[Handle, ...]
    ) -> OperatorMetadata:
        """Return the operator as metadata has it, with the handles of its subtasks."""
        return OperatorMetadata(
            operator_id=operator_id,
            uid=self.uid,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            key_schema=self.key_schema,
            backend=backend,
            handles=handles,
            time_mode=self.time_mode,
            processor=self.processor,
            code_sha256=self.code_sha256,
            schema_sha256=schema_fingerprint(self.key_schema, self.states),
        )

    def first_handle(self, query_id: str, subtask: int, epoch: int) -> Handle:
        """Return the handle of a subtask that has no state yet."""
        return Handle(
            query_id=query_id,
            uid=self.uid,
            subtask=subtask,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            epoch=epoch,
            key_schema=self.key_schema,
            time_mode=self.time_mode,
            has_state_of_no_key=False,
        )


class Drain(msgspec.Struct, frozen=True):
    """The epoch that drains a query, and the true watermark, which state has in it."""

    epoch: int
    watermark_ms: int


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What ``start()`` binds for the tasks of a query; travels as one local property.

    `run` is a name that no other start of the query has. `announces_epochs` is true if the sink is
    ``foreachBatch``, whose actions may run in any thread: each carries an :class:`AnnouncedEpoch`.
    `rolled_back` are the epochs that rollbacks of the location removed. `drain` is set in a run of
    one epoch only, which drains the query. `initial_handles` has what epoch 0 starts from where an
    operator has an initial state. `measures_backend` is true if metrics are reported.
    """

    query_id: str
    run: str
    checkpoint_location: str
    announces_epochs: bool
    rolled_back: tuple[RolledBack, ...]
    checkpoints_directory: str
    query_subdirectory: bool
    backend_type: str
    inline_threshold_bytes: int
    memory_limit_bytes: int
    materialization: Materialization
    drain: Drain | None = None
    initial_handles: FileReference | None = None
    measures_backend: bool = False
    quarantine: QuarantineLimits = QuarantineLimits()
    captures: Captures = Captures()


class AnnouncedEpoch(msgspec.Struct, frozen=True):
    """The epoch that ``foreachBatch`` was called for, and the batch timestamp that Spark gave it.

    The timestamp is in the plan of the epoch's DataFrame too. So an action on the DataFrame of an
    earlier epoch shows.
    """

    epoch: int
    timestamp_ms: int


def encode_descriptor(descriptor: OperatorDescriptor) -> str:
    """Return the text that the token column's metadata carries."""
    return msgspec.json.encode(descriptor).decode()


def decode_descriptor(text: str) -> OperatorDescriptor:
    """Read the text that the token column's metadata carries."""
    return msgspec.json.decode(text, type=OperatorDescriptor)


def encode_runtime(runtime: Runtime) -> str:
    """Return the text of the local property."""
    return msgspec.json.encode(runtime).decode()


def decode_runtime(text: str | None, uid: str) -> Runtime:
    """Read the local property that the driver set at ``start()``.

    If `text` is ``None``, it raises ``PlanError``: the query was started without
    :func:`pyspark_ckpt.write_stream`, or an action of ``foreachBatch`` does not carry the conf of
    the query.
    """
    if not text:
        raise PlanError(
            f"operator {uid!r}: the task does not know its query. If the query was started with "
            "df.writeStream, start it with pyspark_ckpt.write_stream(df). In other threads than "
            "the foreachBatch function's, run only actions of the batch DataFrame, not of its RDD, "
            "and combine it only with DataFrames of df.sparkSession"
        )
    return msgspec.json.decode(text, type=Runtime)


def encode_announced(announced: AnnouncedEpoch) -> str:
    """Return the text of the local property."""
    return msgspec.json.encode(announced).decode()


def decode_announced(text: str) -> AnnouncedEpoch:
    """Read the local property that is set around each call of the ``foreachBatch`` function."""
    return msgspec.json.decode(text, type=AnnouncedEpoch)


_NOT_THE_USERS = ("pyspark.", "pyspark_ckpt.", "abc", "typing", "builtins")


def processor_name(processor: Any) -> str:
    """Return the qualified name of a processor's class."""
    return f"{type(processor).__module__}.{type(processor).__qualname__}"


def code_fingerprint(processor: Any) -> str:
    """Return the SHA-256 of the source of a processor's class and of the user's classes it extends.

    Without its source, as in a plain console, of its compiled methods. Functions that it calls are
    not part of it.
    """
    digest = hashlib.sha256()
    for each in type(processor).__mro__:
        if each.__module__.startswith(_NOT_THE_USERS):
            continue
        try:
            digest.update(inspect.cleandoc(inspect.getsource(each)).encode())
        except (OSError, TypeError):
            for part in _compiled(each):
                digest.update(part)
    return digest.hexdigest()


def schema_fingerprint(key_schema: str, states: Sequence[StateDescriptor]) -> str:
    """Return the SHA-256 of an operator's key schema and of the kinds and schemas of its states."""
    fields = [
        [state.name, state.kind, state.value_schema, state.map_key_schema]
        for state in sorted(states, key=lambda state: state.name)
    ]
    return hashlib.sha256(msgspec.json.encode([key_schema, fields])).hexdigest()


def _compiled(cls: type) -> Iterator[bytes]:
    for name, member in sorted(vars(cls).items()):
        code = getattr(member, "__code__", None)
        if isinstance(code, CodeType):
            yield name.encode()
            yield from _instructions(code)


def _instructions(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        else:
            yield repr(constant).encode()
