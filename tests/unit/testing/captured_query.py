"""A subtask of a query that is captured, driven as a task drives it, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.layout import CHECKPOINTS_DIRECTORY
from pyspark_ckpt.formats.location_files import RolledBack
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.capture.recording import times_of
from pyspark_ckpt.operator.capture.writing import EpochOfTask, WrittenEpoch, WrittenFailure
from pyspark_ckpt.operator.descriptor import (
    Captures,
    OnError,
    OperatorDescriptor,
    Runtime,
    code_fingerprint,
    processor_name,
)
from pyspark_ckpt.operator.modes.mode import MODES
from pyspark_ckpt.operator.plan.declared import copy_as_sent
from pyspark_ckpt.operator.quarantine.quarantine import Releases
from pyspark_ckpt.operator.quarantine.releases import EVERY_KEY, NO_RELEASES, ReleasedKeys
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.keys import KeyPlaces, key_groups_of
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.operator.rows.sent_rows import joined
from pyspark_ckpt.operator.rows.sides import BroadcastRows, EpochInput
from pyspark_ckpt.operator.run.function import OperatorFunction
from pyspark_ckpt.operator.state.removal import sweep
from pyspark_ckpt.operator.table.stored_keys import KEY_GROUP_BYTES, is_keyed
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.settings import Materialization
from pyspark_ckpt.storage.open import LocalStorage
from pyspark_ckpt.testing.schema_text import ParsedSchemas, parse_schema
from state_backends import Changes, open_backend

GROUPS = 128
RULES = "name string, most long"
MINUTE_MS = 60_000


class _ReleasesAll:
    def keys(self) -> ReleasedKeys:
        return EVERY_KEY

    def arm(self) -> None:
        pass


RELEASES_ALL = _ReleasesAll()


class CapturedQuery:
    """One subtask with all key groups; each call of :meth:`epoch` captures an epoch."""

    run, run_started_ms, timeline = "run", 1, 0

    def __init__(
        self,
        root: Path,
        backend: str,
        processor: StatefulProcessor,
        *,
        schema: str = "k string, v long",
        output: str = "k string, n long",
        mode: str = "rows",
        time_mode: TimeMode = TimeMode.NONE,
        quarantines: bool = False,
        fails_only: bool = False,
        limit_bytes: int = 1 << 30,
        state: str = "state",
    ) -> None:
        self.storage = LocalStorage(root / CHECKPOINTS_DIRECTORY)
        self.number = 0
        self.outputs: list[list[dict[str, Any]]] = []
        self.processor = processor
        self.quarantines, self.fails_only, self.limit_bytes = quarantines, fails_only, limit_bytes
        self.root = root
        self.columns = InputColumns(parse_schema(schema), ["k"])
        self.rules = InputColumns(parse_schema(RULES), [])
        self.mode = MODES[mode].of_operator(self.columns, OutputRows(parse_schema(output), "op"))
        self.quarantined = QuarantinedRows(self.columns)
        self.broadcast = BroadcastRows(self.rules, self.mode.form)
        self.schemas = ParsedSchemas()
        self.descriptor = OperatorDescriptor(
            uid="op",
            parallelism=1,
            max_parallelism=GROUPS,
            key_schema=self.columns.key_schema.json(),
            time_mode=time_mode,
            on_error=OnError.QUARANTINE if quarantines else OnError.FAIL,
        )
        self.handle = self.descriptor.first_handle("query", 0, 0)
        self.backend = open_backend(backend, root / state, create=True)
        self.backend.load((), "empty")

    def sent(self, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch | None:
        """Return rows as they come out of the shuffle."""
        keys = self.columns.key_schema
        batches = [self.quarantined.sent([row], group_of(row[0], keys)) for row in rows]
        return joined(batches) if batches else None

    def function(self) -> OperatorFunction:
        name, digest = processor_name(self.processor), code_fingerprint(self.processor)
        return OperatorFunction(
            copy_as_sent(self.processor, "op"),
            OperatorDescriptor(
                **{**fields(self.descriptor), "processor": name, "code_sha256": digest}
            ),
            self.columns,
            self.mode,
            self.schemas,
            {},
            self.broadcast,
            None,
            keeping=self.quarantined if self.quarantines else None,
        )

    def epoch(
        self,
        *parts: Sequence[tuple[Any, ...]],
        rules: Sequence[tuple[Any, ...]] = (),
        now_ms: int | None = None,
        watermark_ms: int | None = None,
        releases: Releases = NO_RELEASES,
    ) -> list[dict[str, Any]]:
        """Run an epoch; return its output as it is sent."""
        now_ms = self.number * MINUTE_MS if now_ms is None else now_ms
        clock = EpochClock(self.descriptor.time_mode, now_ms, watermark_ms)
        function = self.function()
        of_task = self.of_task(function, clock, releases)
        recording: WrittenEpoch | WrittenFailure = WrittenFailure(of_task, self.limit_bytes)
        if not self.fails_only:
            recording = WrittenEpoch(of_task, self.limit_bytes)
        table = recording.table(self.backend, function.writes(1 << 30, self.root))
        processing = function.processing(self.handle, table, clock, self.number, releases)
        sent_rules = [QuarantinedRows(self.rules).sent(list(rules), 0)] if rules else []

        def read() -> EpochInput:
            batches = [[self.sent(part)] for part in parts if part]
            recording.seen.broadcast(sent_rules)
            return EpochInput(
                recording.seen.parts(iter(batches)), self.broadcast.received(sent_rules)
            )

        batches = list(recording.watched(processing, processing.run(read, self.number)))
        states = processing.states
        swept = sweep(table, states.descriptors, states.aging, self.handle.sweep_from)
        self.backend.apply(table.changes(), f"v{self.number}")
        table.close()
        self.handle = Handle(
            **{
                **fields(self.handle),
                "epoch": self.number,
                "states": swept.states,
                "sweep_from": swept.sweep_from,
            }
        )
        self.number += 1
        rows = [row for batch in batches for row in batch.to_pylist()]
        self.outputs.append(rows)
        return rows

    def rescale(self, parallelism: int) -> None:
        """Become the first of more subtasks, without the keys of the others."""
        kept = key_groups_of(0, parallelism, GROUPS)
        moved = [
            place
            for place, _ in self.backend.scan()
            if is_keyed(place) and int.from_bytes(place[:KEY_GROUP_BYTES], "big") not in kept
        ]
        gone = sorted([*moved, *times_of(moved)])
        self.backend.apply([Changes(gone, [None] * len(gone))], "rescaled")
        self.descriptor = OperatorDescriptor(
            **{**fields(self.descriptor), "parallelism": parallelism}
        )
        self.handle = Handle(**{**fields(self.handle), "parallelism": parallelism})

    def of_task(
        self, function: OperatorFunction, clock: EpochClock, releases: Releases
    ) -> EpochOfTask:
        return EpochOfTask(
            self.handle,
            clock,
            self.number,
            function.program(),
            tuple(self.columns.arrow_schema.names),
            self.mode,
            self.runtime(),
            self.storage,
            releases,
        )

    def runtime(self) -> Runtime:
        return Runtime(
            query_id="query",
            run=self.run,
            checkpoint_location="",
            announces_epochs=False,
            rolled_back=(RolledBack("query", 0),) * self.timeline,
            checkpoints_directory="",
            query_subdirectory=False,
            backend_type="heap",
            inline_threshold_bytes=0,
            memory_limit_bytes=1 << 30,
            materialization=Materialization(),
            captures=Captures(run_started_ms=self.run_started_ms),
        )

    def files(self) -> list[Path]:
        return sorted(
            (self.root / CHECKPOINTS_DIRECTORY / "captures").glob("*.capture"), key=_epoch_of
        )

    def save(self) -> Path:
        """Return one file with all captured epochs: the parts, one after the other."""
        target = self.root / "all.capture"
        target.write_bytes(b"".join(file.read_bytes() for file in self.files()))
        return target

    def close(self) -> None:
        self.backend.close()


def group_of(key: Any, keys: T.StructType | None = None) -> int:
    return KeyPlaces(keys or parse_schema("k string"), GROUPS).place((key,))[0]


def fields(struct: Any) -> Mapping[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _epoch_of(file: Path) -> tuple[int, int]:
    """Return the epoch in the name of a capture; that of a quarantined key's failure has none."""
    name = file.name.split("-")
    return (0, 0) if name[0] == "quarantined" else (1, int(name[3]))


Query = Callable[..., CapturedQuery]
"""Makes a query with a processor and a backend."""
