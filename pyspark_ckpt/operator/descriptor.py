"""What driver and executor both know of an operator."""

from __future__ import annotations

import msgspec

from pyspark_ckpt.configuration import Materialization
from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.on_disk.handle import Handle, StateDescriptor


class MigrationDescriptor(msgspec.Struct, frozen=True):
    """What a user's migration has, without its functions."""

    value: bool
    key: bool
    renamed_from: str | None

    @classmethod
    def of(cls, migration: Migration) -> MigrationDescriptor:
        """Describe a migration."""
        return cls(migration.value is not None, migration.key is not None, migration.renamed_from)


class OperatorDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """One stateful operator as the query was built.

    It travels in the metadata of the token column, so the plan itself tells the driver, at
    ``start()``, which operators a query has, whatever was done to the DataFrame in between.
    `processor` and `code_sha256` tell which code it is. `initial_state` names what
    :mod:`pyspark_ckpt.initial_state` remembers for it.
    """

    uid: str
    parallelism: int
    max_parallelism: int
    key_schema: str
    time_mode: str = "None"
    states: tuple[StateDescriptor, ...] = ()
    migrations: dict[str, MigrationDescriptor] = {}
    initial_state: str | None = None
    processor: str = ""
    code_sha256: str = ""

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
        )


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What ``start()`` binds for the tasks of a query; travels as one local property.

    `drained_from_ms` is the true watermark in an epoch that drains the query.
    """

    checkpoints_directory: str
    query_subdirectory: bool
    backend_type: str
    inline_threshold_bytes: int
    memory_limit_bytes: int
    materialization: Materialization
    drained_from_ms: int | None = None


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

    Raises
    ------
    PlanError
        If there is none: the query was started without :func:`pyspark_ckpt.write_stream`.
    """
    if not text:
        raise PlanError(
            f"operator {uid!r} runs in a query that was started with df.writeStream: start it "
            "with pyspark_ckpt.write_stream(df)"
        )
    return msgspec.json.decode(text, type=Runtime)
