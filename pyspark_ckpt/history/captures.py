"""The captures of a query: asked for, found, and made one file; readable without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path

from pyspark_ckpt.errors import CheckpointNotFoundError, CorruptFileError, PlanError
from pyspark_ckpt.formats.layout import CaptureName, operator_mark
from pyspark_ckpt.operator.capture.capture_file import CapturedEpoch, decode_epoch
from pyspark_ckpt.operator.capture.orders import CaptureFiles, newest_captures, orders_of
from pyspark_ckpt.spark.log import SparkLog
from pyspark_ckpt.storage.open import LocalStorage, Storage

_LAST_EPOCH = (1 << 53) - 1


class Capture:
    """Chosen epochs of a query, which are captured when they run.

    Parameters
    ----------
    checkpoints : Storage
        The query's checkpoints directory.
    log : SparkLog
        Spark's log of the query's location.
    epochs : int or iterable of int
        The numbers of the epochs.
    uid : str, optional
        The operator; by default all operators of the query.

    Raises
    ------
    PlanError
        If an epoch is not a number of an epoch, or there is none.

    Examples
    --------
    >>> ckpt.location(f"{directory}/location").capture(7)
    Capture(epochs=[7])
    """

    def __init__(
        self,
        checkpoints: Storage,
        log: SparkLog,
        epochs: int | Iterable[int],
        uid: str | None = None,
    ) -> None:
        self.epochs = _epoch_numbers(epochs)
        self._uid = uid
        self._storage = checkpoints
        self._log = log
        self._files = CaptureFiles(checkpoints)
        self._orders = orders_of(self.epochs, uid)

    def __repr__(self) -> str:
        return f"Capture(epochs={self.epochs})"

    def request(self) -> None:
        """Have the epochs captured from the next start on; :meth:`Location.capture` has done it.

        Raises
        ------
        CorruptFileError
            If an earlier request is damaged.

        Examples
        --------
        >>> ckpt.location(f"{directory}/location").capture(7).request()
        """
        self._files.request(self._orders)

    def captured(self) -> list[int]:
        """Return which of the epochs are captured and committed.

        Returns
        -------
        list of int
            The numbers of the epochs.

        Examples
        --------
        >>> ckpt.location(f"{directory}/location").capture(7).captured()
        []
        """
        return sorted({epoch.epoch for epoch in self._newest().values()})

    def save(self, path: str | Path) -> Path:
        """Make one file of the captures of all subtasks, for ``pyspark_ckpt.testing.replay``.

        Only committed epochs are in it. If an epoch ran several times, as after a crash or a
        rollback, the newest run of it that was captured is in it, and nothing of other runs.

        Parameters
        ----------
        path : str or Path
            The file, on this machine. A file of that name is replaced.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        CheckpointNotFoundError
            If none of the epochs is captured yet.
        CorruptFileError
            If a capture is damaged.

        Examples
        --------
        >>> try:
        ...     ckpt.location(f"{directory}/location").capture(7).save("seven.capture")
        ... except ckpt.errors.CheckpointNotFoundError as error:
        ...     print(str(error).rpartition(": ")[2])
        start the query there, and wait until the epochs are committed
        """
        found = self._newest()
        if not found:
            raise CheckpointNotFoundError(
                f"{self._storage.url} has no captures of epochs {self.epochs[0]} to "
                f"{self.epochs[-1]}: start the query there, and wait until the epochs are committed"
            )
        target = Path(path).absolute()
        order = attrgetter("epoch", "uid", "subtask")
        parts = sorted(found, key=lambda each: order(found[each]))
        directory = LocalStorage(target.parent)
        directory.delete([target.name])
        directory.write(
            target.name, (chunk for part in parts for chunk in self._storage.chunks(part))
        )
        return target

    def delete(self) -> None:
        """Delete the captures of the epochs, and no longer capture them from the next start on.

        Examples
        --------
        >>> ckpt.location(f"{directory}/location").capture(7).delete()
        """
        self._files.delete(self._paths(), self._orders)

    def _paths(self) -> list[str]:
        wanted = set(self.epochs)
        return [
            path
            for path, name in self._files.captured().items()
            if name.epoch in wanted and self._is_of(name)
        ]

    def _is_of(self, name: CaptureName) -> bool:
        return self._uid is None or name.operator == operator_mark(self._uid)

    def _newest(self) -> dict[str, CapturedEpoch]:
        """Return the captures of committed epochs that count, by their paths."""
        committed, wanted = self._log.committed_epoch(), set(self.epochs)
        if committed is None:
            return {}
        # The captures of other operators tell too which run was the newest.
        names = {
            path: name
            for path, name in self._files.captured().items()
            if name.epoch in wanted and name.epoch <= committed
        }
        found = {path: self._read(path, name) for path, name in names.items()}
        headers = {path: header for path, header in found.items() if header is not None}
        return {
            path: headers[path] for path in newest_captures(headers) if self._is_of(names[path])
        }

    def _read(self, path: str, name: CaptureName) -> CapturedEpoch | None:
        """Return the header of a capture; ``None`` if it is damaged and of another operator."""
        try:
            return decode_epoch(_Chunks(self._storage, path), self._storage.url_of(path))
        except CorruptFileError:
            if self._is_of(name):
                raise
            return None


class _Chunks:
    """Reads a file of a storage from its start, and no more of it than is asked for."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._chunks = iter(storage.chunks(path))
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end."""
        while len(self._rest) < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            self._rest += chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _epoch_numbers(epochs: int | Iterable[int]) -> list[int]:
    numbers = [epochs] if isinstance(epochs, int) else list(epochs)
    if not numbers or not all(
        isinstance(each, int) and 0 <= each <= _LAST_EPOCH for each in numbers
    ):
        raise PlanError(
            f"capture of epochs {str(numbers)[:200]}: give numbers of epochs from 0 on, such as "
            "range(3, 6)"
        )
    return sorted(set(numbers))
