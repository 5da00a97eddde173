"""The history of a query and of its subtasks as DataFrames, read without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
import pandas as pd

from pyspark_ckpt.errors import CkptError, ConfigurationError, UnsafePathError
from pyspark_ckpt.formats.counters import COUNTERS
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import EntryKind
from pyspark_ckpt.history.log import HistoryEntry, HistoryLog, checkpoint_entries, sizes_of_subtask
from pyspark_ckpt.history.places import OF_ONE_FILE, find_checkpoints_directory
from pyspark_ckpt.history.run_log import RecordedRuns
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.schema.report import LIBRARY_PREFIX
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.base import CompletedCheckpointStore
from pyspark_ckpt.stores.open import find_store

logger = library_logger(__name__)

HISTORY_COLUMNS = (
    "kind", "status", "checkpoint_id", "epoch", "triggered_at", "duration_ms", "size_bytes",
    "new_bytes", "files", "phases_ms", "path", "reason", "parallelism_before", "parallelism",
    "pause_ms",
)  # fmt: skip

_NUMBERS = (
    "checkpoint_id", "epoch", "duration_ms", "size_bytes", "new_bytes", "files",
    "parallelism_before", "parallelism", "pause_ms",
)  # fmt: skip

_NOTES_READ = 120
"""Notes of a run that say how many keys were quarantined: of the last hour, one request each."""

_OF_EPOCH = tuple(field for field, counter in COUNTERS.items() if counter.in_history)

SUBTASK_COLUMNS = (
    "checkpoint_id", "epoch", "uid", "subtask", "subtask_epoch", "size_bytes", "new_bytes",
    "files", "base_bytes", "segments", *_OF_EPOCH,
)  # fmt: skip

_NEEDED = frozenset(
    {"kind", "status", "checkpoint_id", "triggered_at", "duration_ms", "size_bytes"}
)

_MB = 1024**2
_MOST_MS = pd.Timestamp.max.value // 1_000_000
_MOST = 2**63 - 1


def history(path: str) -> History:
    """Return the history of a query's checkpoints and savepoints."""
    storage = find_checkpoints_directory(path)
    with closing(find_store(storage)) as store:
        entries = [*entries_of(store), *_log_entries(storage)]
        quarantines = _quarantines(store)
    frame = as_frame(sorted(entries, key=HistoryEntry.order))
    quarantined = _quarantined_by_checkpoint(storage) if quarantines else {}
    numbers = frame["checkpoint_id"].where(frame["kind"] == EntryKind.CHECKPOINT.value)
    for place, name in enumerate(("quarantined_keys", "quarantined_rows")):
        counts = {number: each[place] for number, each in quarantined.items()}
        frame[name] = numbers.map(counts).astype("Int64")
    return History(frame)


def _quarantines(store: CompletedCheckpointStore) -> bool:
    """Return whether an operator has ever quarantined a key, by the newest checkpoint."""
    for number in reversed(_ids(store)):
        metadata = _read(store, number)
        if isinstance(metadata, CheckpointMetadata):
            return any(
                state.name == LIBRARY_PREFIX
                for handle in metadata.handles()
                for state in handle.states
            )
    return False


def _quarantined_by_checkpoint(storage: Storage) -> dict[int, tuple[int, int]]:
    """Return the quarantined keys and rows of each recorded checkpoint."""
    return {
        each.checkpoint_id: (
            sum(operator.quarantined_keys for operator in each.operators),
            sum(operator.quarantined_rows for operator in each.operators),
        )
        for note in RecordedRuns(storage).notes(_NOTES_READ)
        for each in note.checkpoints
    }


def entries_of(store: CompletedCheckpointStore) -> list[HistoryEntry]:
    """Return an entry for each checkpoint of a store, also if it is damaged."""
    return list(checkpoint_entries((n, store.path(n), each) for n, each in _found(store)))


def as_frame(entries: list[HistoryEntry], columns: Sequence[str] = HISTORY_COLUMNS) -> pd.DataFrame:
    """Return entries as a DataFrame of some columns."""
    rows = [msgspec.to_builtins(entry) for entry in entries]
    for row in rows:  # one strange file hides no other one
        row["triggered_at_ms"] = milliseconds_in_range(row["triggered_at_ms"])
        row.update((name, number_in_range(row[name])) for name in _NUMBERS)
    fields = [field.name for field in msgspec.structs.fields(HistoryEntry)]
    frame = pd.DataFrame(rows, columns=fields)
    frame["triggered_at"] = pd.to_datetime(frame["triggered_at_ms"], unit="ms", utc=True)
    types: dict[str, Any] = dict.fromkeys(_NUMBERS, "Int64")
    return frame.astype(types)[list(columns)]


def _found(
    store: CompletedCheckpointStore,
) -> Iterator[tuple[int, CheckpointMetadata | CkptError]]:
    """Yield what can be read of each checkpoint; warn once of those that cannot be read.

    A checkpoint that retention removes during the call is left out, as if it was removed before.
    """
    left_out: dict[int, OSError] = {}
    for number in _ids(store):
        found = _read(store, number)
        if not isinstance(found, CheckpointMetadata) and not _may_be_complete(store, number):
            continue
        if isinstance(found, CheckpointMetadata | CkptError):
            yield number, found
        else:
            left_out[number] = found
    if left_out:
        number, error = next(iter(left_out.items()))
        logger.warning(
            "%d checkpoints cannot be read and are left out of the history, such as %s: %s",
            len(left_out),
            store.path(number),
            error,
        )


def _ids(store: CompletedCheckpointStore) -> list[int]:
    """Return the ids of the checkpoints, with those of which nothing may be read."""
    try:
        return store.ids()
    except (UnsafePathError, *OF_ONE_FILE):
        return [number for number in store.used_ids() if _may_be_complete(store, number)]


def _may_be_complete(store: CompletedCheckpointStore, number: int) -> bool:
    try:
        return store.is_complete(number)
    except (UnsafePathError, *OF_ONE_FILE):
        return True


def _read(store: CompletedCheckpointStore, number: int) -> CheckpointMetadata | CkptError | OSError:
    try:
        return store.read(number)
    except (CkptError, *OF_ONE_FILE) as exc:
        return exc


def _log_entries(storage: Storage) -> list[HistoryEntry]:
    try:
        return HistoryLog(storage).entries()
    except OF_ONE_FILE as exc:
        logger.warning("%s: the history log cannot be read and is left out: %s", storage.url, exc)
        return []


def subtask_history(path: str) -> pd.DataFrame:
    """Return the part of each subtask in the retained checkpoints of a query."""
    rows: list[dict[str, Any]] = []
    before: dict[tuple[str, int], Handle] = {}
    with closing(find_store(find_checkpoints_directory(path))) as store:
        for _, metadata in _found(store):
            if not isinstance(metadata, CheckpointMetadata):
                continue  # history() shows the damaged checkpoint
            handles = {(handle.uid, handle.subtask): handle for handle in metadata.handles()}
            rows += [_row(metadata, handle, before.get(key)) for key, handle in handles.items()]
            before = handles
    return pd.DataFrame(rows, columns=list(SUBTASK_COLUMNS))


def _row(metadata: CheckpointMetadata, handle: Handle, before: Handle | None) -> dict[str, Any]:
    sizes = sizes_of_subtask(handle, before)
    counted = handle.counted(handle.epoch)
    return {
        "checkpoint_id": metadata.checkpoint_id,
        "epoch": metadata.epoch,
        "uid": handle.uid,
        "subtask": handle.subtask,
        "subtask_epoch": handle.epoch,
        "size_bytes": sizes.size_bytes,
        "new_bytes": sizes.new_bytes,
        "files": sizes.files,
        "base_bytes": 0 if handle.base is None else handle.base.size_bytes,
        "segments": len(handle.segments),
        **{field: counted[field] for field in _OF_EPOCH},
    }


class History(pd.DataFrame):
    """What :meth:`Location.history` returns: a ``pandas.DataFrame`` with its own plot.

    ``plot()`` without arguments draws the duration of each checkpoint by phase, its size, and the
    attempts that were aborted. It needs the extra ``plot``. With arguments, ``plot`` is that of
    pandas.
    """

    @property
    def _constructor(self) -> type[History]:
        return History

    @property
    def plot(self) -> Any:
        """The plot of checkpoints, or with arguments that of pandas."""
        return _HistoryPlot(self)


class _HistoryPlot(pd.plotting.PlotAccessor):
    def __init__(self, data: pd.DataFrame) -> None:
        super().__init__(data)
        self._history = data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or not set(self._history.columns) >= _NEEDED:
            return super().__call__(*args, **kwargs)
        return plot_history(self._history)


def plot_history(history: pd.DataFrame) -> Any:
    """Draw durations by phase and sizes of the checkpoints of a history; return the two axes."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as exc:
        raise ConfigurationError(
            f"a plot needs a library that is not installed ({exc}): install pyspark_ckpt[plot]"
        ) from exc
    is_checkpoint = history["kind"] == "checkpoint"
    completed = history[is_checkpoint & (history["status"] == "completed")]
    aborted = history[is_checkpoint & (history["status"] == "aborted")]
    _, (durations, sizes) = plt.subplots(2, 1, sharex=True, figsize=(8, 5), layout="constrained")
    ids = [int(each) for each in completed["checkpoint_id"]]
    bottom = [0.0] * len(ids)
    for phase, heights in _by_phase(completed).items():
        durations.bar(ids, heights, bottom=bottom, label=phase)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    failed = aborted[aborted["checkpoint_id"].notna()]
    if len(failed):
        numbers = [int(each) for each in failed["checkpoint_id"]]
        heights = [float(each) for each in failed["duration_ms"].fillna(0)]
        durations.plot(numbers, heights, "x", color="tab:red", label="aborted")
    durations.set_ylabel("duration (ms)")
    if ids or len(failed):
        durations.legend()
    sizes.plot(ids, [int(each) / _MB for each in completed["size_bytes"]], "o-", label="full")
    if "new_bytes" in completed:
        new = completed["new_bytes"].astype("Float64") / _MB
        sizes.plot(ids, new.to_numpy(dtype=float, na_value=float("nan")), "o-", label="new files")
    sizes.set_ylabel("size (MB)")
    sizes.set_xlabel("checkpoint")
    if ids:
        sizes.legend()
    return durations, sizes


def _by_phase(completed: pd.DataFrame) -> Mapping[str, list[float]]:
    """Return the milliseconds of each phase per checkpoint; the rest has no phase."""
    none: list[Mapping[str, int] | None] = [None] * len(completed)
    phases = list(completed["phases_ms"]) if "phases_ms" in completed else none
    known = [each if isinstance(each, Mapping) else {} for each in phases]
    names = list(dict.fromkeys(name for each in known for name in each))
    found = {name: [float(each.get(name, 0)) for each in known] for name in names}
    totals = [float(each) for each in completed["duration_ms"]]
    found["rest"] = [
        max(total - sum(each.values()), 0.0) for total, each in zip(totals, known, strict=True)
    ]
    return found


def milliseconds_in_range(at_ms: int | None) -> int | None:
    """Return milliseconds since 1970, ``None`` if pandas has no such time: its end in 2262."""
    return at_ms if at_ms is not None and abs(at_ms) <= _MOST_MS else None


def number_in_range(value: int | None) -> int | None:
    """Return a number, ``None`` if it has more than 64 bits."""
    return value if value is not None and abs(value) <= _MOST else None


def utc_time(at_ms: int) -> Any:
    """Return a time in UTC, or ``NaT`` if pandas has no such time."""
    known_ms = milliseconds_in_range(at_ms)
    return pd.NaT if known_ms is None else pd.Timestamp(known_ms, unit="ms", tz="UTC")
