"""The states that a processor declares, found by running its ``init`` once on the driver.

PySpark does the same for its own operator before a query starts. It moves mistakes in ``init`` to
the line that builds the query, and parses DDL schemas, which executors cannot.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import CkptError, PlanError, ProcessorError, StateUseError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.state.handle import ProcessorHandle, as_state_schema
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.task_failure import user_frames
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.values.words import shortened
from state_backends import Changes, StateBackend


@dataclass(frozen=True, slots=True)
class DeclaredStates:
    """The states that ``init`` asked for, and the DDL schemas that it used."""

    descriptors: tuple[StateDescriptor, ...]
    schemas: dict[str, T.StructType]


class _ParsedOnDemand(dict[str, T.StructType]):
    """Parses the DDL text of a state at its first use; driver only."""

    def __missing__(self, text: str) -> T.StructType:
        try:
            parsed = T.DataType.fromDDL(text)
        except Exception as exc:
            raise StateUseError(f"schema {text!r} cannot be parsed: {exc}") from exc
        schema = self[text] = as_state_schema(parsed)
        return schema


class _NoState(StateBackend):
    """The empty state of a new subtask; ``init`` may read operator state."""

    def marker(self) -> None:
        """Do nothing."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Find nothing."""
        return [None] * len(keys)

    def scan(self, prefix: bytes = b"", start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:  # noqa: ARG002
        """Find nothing."""
        return iter(())

    def apply(self, changes: Iterable[Changes], version: str) -> None:
        """Keep nothing."""

    def load(self, changes: Iterable[Changes], version: str) -> None:
        """Keep nothing."""

    def snapshot_files(self, directory: Path) -> list[str]:  # noqa: ARG002
        """Write nothing."""
        return []

    def close(self) -> None:
        """Close nothing."""


def declare_states(
    processor: StatefulProcessor, uid: str, time_mode: TimeMode, *, has_watermark: bool
) -> DeclaredStates:
    """Run ``init`` and ``close`` of a copy of a processor and return the states it asks for."""
    if not isinstance(processor, StatefulProcessor):
        raise PlanError(f"operator {uid!r}: {no_instance(processor, StatefulProcessor)}")
    if time_mode is not TimeMode.NONE:
        _check_timer_method(processor, uid)
    schemas = _ParsedOnDemand()
    clock = EpochClock(time_mode, 0, 0 if has_watermark else None)
    handle = ProcessorHandle(StateTable(_NoState()), clock, f"operator {uid!r}", (), schemas)
    copy = copy_as_sent(processor, uid)
    try:
        copy.init(handle)  # type: ignore[arg-type]
        copy.close()
    except CkptError as exc:
        exc.add_place(user_frames(exc))
        raise
    except Exception as exc:
        raise ProcessorError(
            f"operator {uid!r}: init or close of {type(processor).__name__} raised "
            f"{type(exc).__name__}: {shortened(str(exc))}; both run once on the "
            f"driver when the query is built, to learn the states{user_frames(exc)}"
        ) from exc
    return DeclaredStates(handle.descriptors, dict(schemas))


def _check_timer_method(processor: StatefulProcessor, uid: str) -> None:
    """Refuse a method that fails for every timer, before the first one is due."""
    try:
        signature = inspect.signature(processor.handleExpiredTimer, follow_wrapped=False)
    except (TypeError, ValueError):  # a callable that does not say
        return
    try:
        signature.bind(key=(), timerValues=None, expiredTimerInfo=None)
    except TypeError as exc:
        raise PlanError(
            f"operator {uid!r}: {type(processor).__name__}.handleExpiredTimer{signature} cannot be "
            f"called ({exc}): its parameters are given by name, so call them key, timerValues and "
            "expiredTimerInfo"
        ) from exc


def no_instance(processor: object, wanted: type) -> str:
    """Return why an object is not a processor of a class, and what to give."""
    if isinstance(processor, type) and issubclass(processor, wanted):
        name = processor.__name__
        return f"the class {name} was given for an instance: give {name}()"
    return (
        f"{type(processor).__name__} does not extend {wanted.__name__}: subclass "
        f"{_PUBLIC.get(wanted.__name__, 'pyspark_ckpt')}.{wanted.__name__}"
    )


_PUBLIC = {"StatefulProcessor": "pyspark.sql.streaming"}
"""The package that users import a class from."""


def parse_schema(text: str) -> T.StructType:
    """Parse a DDL text; driver only."""
    try:
        schema = T.DataType.fromDDL(text)
    except Exception as exc:
        raise PlanError(f"schema {text!r} cannot be parsed: {exc}") from exc
    if not isinstance(schema, T.StructType):
        raise PlanError(
            f"schema {text!r} is not a list of fields: write it as 'name string, n long'"
        )
    return schema


def copy_as_sent(processor: StatefulProcessor, uid: str) -> StatefulProcessor:
    """Copy a processor as Spark does to ship it; in memory only."""
    try:
        copy: StatefulProcessor = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    except Exception as exc:
        raise PlanError(
            f"operator {uid!r}: {type(processor).__name__} cannot be sent to executors "
            f"({type(exc).__name__}: {exc}); open connections and locks in init, not in __init__"
        ) from exc
    return copy
