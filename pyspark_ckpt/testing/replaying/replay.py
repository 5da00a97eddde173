"""``replay``: runs captured epochs with a processor, without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.capture.capture_file import CapturedEpoch
from pyspark_ckpt.operator.descriptor import code_fingerprint
from pyspark_ckpt.operator.rows.sent_rows import SentRows
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.snapshot.columns import pandas_frame
from pyspark_ckpt.testing.replaying.differences import Difference, differences_of, shown_output
from pyspark_ckpt.testing.replaying.parts import read_parts
from pyspark_ckpt.testing.replaying.subtask import SubtaskReplay
from state_backends import BACKEND_TYPES

_SHOWN = 10


def replay(
    file: str | Path,
    processor: StatefulProcessor,
    *,
    uid: str | None = None,
    backend: str = "heap",
    migrations: Mapping[str, Migration] | None = None,
) -> ReplayResult:
    """Run captured epochs with a processor, without Spark, and compare.

    The rows, their order, the times, the broadcast rows and the state are those of the query. So
    a processor that is as it was gives the same output and state bit for bit. An entry of state
    that differs after an epoch goes on with the value of the replay.

    Parameters
    ----------
    file : str or Path
        What :meth:`pyspark_ckpt.results.Capture.save` made, or what a failing task wrote; also at a
        URL.
    processor : StatefulProcessor, BatchProcessor or ArrowProcessor
        The processor, as it was or changed.
    uid : str, optional
        The operator, if the file has several.
    backend : str
        ``heap`` or ``rocksdb``; it may differ from that of the query.
    migrations : Mapping of str to Migration, optional
        As for ``transformWithState``.

    Returns
    -------
    ReplayResult
        The output, and what differs.

    Raises
    ------
    ProcessorError
        If the processor raises, as it did in the query.
    IncompatibleStateError
        If the processor asks for states that the stored states cannot become.
    HarnessUseError
        If the processor is of another kind than the captured one, there is no such operator or
        backend, or an epoch was too large to be captured.
    CheckpointNotFoundError, CorruptFileError
        If there is no capture, or it is damaged.

    Examples
    --------
    >>> replay("flights.capture", Turnarounds(15)).assert_same()  # doctest: +SKIP
    """
    if backend not in BACKEND_TYPES:
        raise HarnessUseError(f"backend is {backend!r}: use one of {', '.join(BACKEND_TYPES)}")
    parts = read_parts(file, uid)
    result = ReplayResult(str(file), code_fingerprint(processor))
    subtasks: dict[int, SubtaskReplay] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyspark-ckpt-replay-")))
        for part in parts:
            number = part.epoch.subtask
            if number not in subtasks:
                directory = root / str(number)
                directory.mkdir()
                replayed = SubtaskReplay(processor, backend, migrations or {}, directory)
                subtasks[number] = stack.enter_context(closing(replayed))
            epoch = subtasks[number].run(part)
            captured = [] if epoch.captured is None else epoch.captured.output
            result.add(epoch.epoch, epoch.replayed.output, captured, list(differences_of(epoch)))
    return result


class ReplayResult:
    """What a replay gave; :func:`replay` returns it.

    It is true if nothing differs.

    Parameters
    ----------
    file : str
        The capture.
    code_sha256 : str
        The digest of the code that was run.

    Examples
    --------
    >>> result = replay("flights.capture", Turnarounds(30))  # doctest: +SKIP
    >>> print(result.differences[0])  # doctest: +SKIP
    epoch 3, key ('N10156',), output: carried_min 18 -> 0, delays_carried 1 -> 0
    """

    def __init__(self, file: str, code_sha256: str) -> None:
        self._file = file
        self._code_sha256 = code_sha256
        self._epochs: list[CapturedEpoch] = []
        self._output: list[SentRows] = []
        self._captured: list[SentRows] = []
        self.differences: list[Difference] = []

    def add(
        self,
        epoch: CapturedEpoch,
        output: SentRows,
        captured: SentRows,
        differences: Sequence[Difference],
    ) -> None:
        """Add an epoch of a subtask; :func:`replay` does it.

        Parameters
        ----------
        epoch : CapturedEpoch
            The epoch.
        output : list of pyarrow.RecordBatch
            What the replay yielded, as it is sent.
        captured : list of pyarrow.RecordBatch
            What the query yielded.
        differences : sequence of Difference
            What differs.

        Examples
        --------
        >>> ReplayResult("flights.capture", "").add(epoch, [], [], [])  # doctest: +SKIP
        """
        self._epochs.append(epoch)
        self._output.append(output)
        self._captured.append(captured)
        self.differences.extend(differences)

    @property
    def epochs(self) -> list[int]:
        """The numbers of the epochs."""
        return sorted({each.epoch for each in self._epochs})

    @property
    def failures(self) -> list[str]:
        """The errors that the query's tasks had, where they were captured."""
        return [each.error for each in self._epochs if each.error is not None]

    @property
    def not_repeated(self) -> list[str]:
        """The errors of the query that did not come again, although the code is as it was."""
        return [
            each.error
            for each in self._epochs
            if each.error is not None and each.program.code_sha256 == self._code_sha256
        ]

    @property
    def is_same(self) -> bool:
        """Whether output and state are those of the query, bit for bit, and its errors came again.

        An error that does not come with other code counts as mended.
        """
        return not self.differences and not self.not_repeated

    def __bool__(self) -> bool:
        return self.is_same

    @property
    def output(self) -> pd.DataFrame:
        """What the processor yielded in the replay, with ``epoch`` in front."""
        return self._frame(self._output)

    @property
    def captured_output(self) -> pd.DataFrame:
        """What the processor yielded in the query, with ``epoch`` in front."""
        return self._frame(self._captured)

    def to_pandas(self) -> pd.DataFrame:
        """Return the differences as a frame.

        Returns
        -------
        pandas.DataFrame
            A row per difference: epoch, subtask, key, where, place, columns, old, new.

        Examples
        --------
        >>> from pyspark_ckpt.testing import ReplayResult
        >>> ReplayResult("flights.capture", "").to_pandas().empty
        True
        """
        names = ["epoch", "subtask", "key", "where", "place", "columns", "old", "new"]
        rows = [[getattr(each, name) for name in names] for each in self.differences]
        return pd.DataFrame(rows, columns=names)

    def assert_same(self) -> None:
        """Raise an error that names keys, columns, old and new values if anything differs.

        Raises
        ------
        AssertionError
            If output or state is not that of the query, or an error did not come again.

        Examples
        --------
        >>> from pyspark_ckpt.testing import ReplayResult
        >>> ReplayResult("flights.capture", "").assert_same()
        """
        if self.is_same:
            return
        if not self.differences:
            raise AssertionError(
                f"the replay of {self._file} raised no error, where the query's task did: "
                f"{self.not_repeated[0]}{self._hint()}"
            )
        shown = "\n".join(f"  {each}" for each in self.differences[:_SHOWN])
        more = len(self.differences) - _SHOWN
        if more > 0:
            shown += f"\n  and {more} more"
        raise AssertionError(
            f"the replay of {self._file} differs from the query in {len(self.differences)} "
            f"places:\n{shown}{self._hint()}"
        )

    def _hint(self) -> str:
        captured = {each.program.code_sha256 for each in self._epochs}
        if captured != {self._code_sha256}:
            return ""
        return (
            "\nThe code of the processor is as it was. So it depends on something that no capture "
            "has: arguments of the processor, the clock of the machine, random numbers, the order "
            "of sets (PYTHONHASHSEED), or another system"
        )

    def _frame(self, outputs: Sequence[SentRows]) -> pd.DataFrame:
        frames: list[pd.DataFrame] = []
        for epoch, batches in zip(self._epochs, outputs, strict=True):
            if batches:
                table: Any = shown_output(batches, struct_type(epoch.program.output_schema))
                numbers = pa.array([epoch.epoch] * table.num_rows, pa.int64())
                name = "epoch" if "epoch" not in table.column_names else "__epoch"
                frames.append(pandas_frame(table.add_column(0, name, numbers)))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
