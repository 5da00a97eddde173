"""The pin of one open snapshot: written before it is read, renewed by a thread, removed at the end.

See :mod:`pyspark_ckpt.stores.reader_pins` for how pins and deletions see each other.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from typing import Protocol

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError
from pyspark_ckpt.formats.metadata_file import read_metadata_and_digest
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.storage.open import Storage, open_storage
from pyspark_ckpt.stores.reader_pins import encode_pin, pin_files, pin_name

LEASE_MS = 600_000
"""How long a pin counts without being renewed."""

_RENEWALS = 3
"""How often a pin is renewed within its time."""

logger = library_logger(__name__)


class Pin(Protocol):
    """What keeps the files of a snapshot while they are read."""

    def check(self) -> None:
        """Check that the pin still counts.

        Raises
        ------
        CheckpointNotFoundError
            If the snapshot has been deleted.
        """

    def close(self) -> None:
        """Remove the pin."""


class ReaderPin:
    """Keeps the files of a snapshot from being deleted while it is read.

    If the directory cannot be written, the snapshot is read without a pin, and the log says so.

    `lease_ms` is how long the pin of a dead reader counts. ``CheckpointNotFoundError`` is raised if
    the snapshot was deleted just now, or is being deleted.
    """

    def __init__(self, source: RestoreSource, lease_ms: int = LEASE_MS) -> None:
        files = sorted({file.path for file in source.metadata.files()})
        self._source = source
        self._lease = _Lease(source.storage, files, lease_ms)
        self._is_needed = self._lease.renew()
        if self._is_needed:
            self._check_complete()
            # The thread does not keep the pin, so a snapshot that is dropped is released.
            over = threading.Event()
            self._end = weakref.finalize(self, _end, over, self._lease)
            threading.Thread(
                target=_renew_until,
                args=(over, self._lease, lease_ms / 1000 / _RENEWALS),
                name="pyspark_ckpt pin",
                daemon=True,
            ).start()

    def check(self) -> None:
        """Check that the pin still counts; if it was over, pin again what is still complete."""
        if self._is_needed and self._lease.is_over() and self._lease.renew():
            self._check_complete()

    def close(self) -> None:
        """Remove the pin."""
        if self._is_needed:
            self._end()

    def _check_complete(self) -> None:
        path = self._source.path
        try:
            _, sha256 = read_metadata_and_digest(open_storage(path))
        except (CkptError, OSError):
            self._lease.end()
            raise
        is_closed = any(
            not each.is_pin and each.counts(now_ms()) for each in pin_files(self._source.storage)
        )
        if is_closed or sha256 != self._source.sha256:
            self._lease.end()
            raise CheckpointNotFoundError(
                f"{path} is being deleted, or was replaced: open another checkpoint or savepoint"
            )


class _Lease:
    """A pin file and its successors."""

    def __init__(self, storage: Storage, files: list[str], lease_ms: int) -> None:
        self._storage = storage
        self._content = encode_pin(f"{socket.gethostname()}, process {os.getpid()}", files)
        self._lease_ms = lease_ms
        self._guard = threading.Lock()
        self._name: str | None = None
        self._expires_ms = 0
        self._has_ended = False

    def is_over(self) -> bool:
        """Return whether others no longer count the pin; without the time that clocks differ."""
        return now_ms() > self._expires_ms

    def renew(self) -> bool:
        """Write a pin in place of the last one; return whether that was possible."""
        with self._guard:
            if self._has_ended:
                return True
            expires_ms = now_ms() + self._lease_ms
            name = pin_name(expires_ms)
            try:
                self._storage.write(name, [self._content])
                before, self._name = self._name, name
                self._expires_ms = expires_ms
                if before is not None:
                    self._storage.delete([before])
            except (OSError, CkptError) as exc:
                logger.warning(
                    "%s: the pin of a reader could not be written, so what is read may be deleted "
                    "in the meantime: %s",
                    self._storage.url,
                    exc,
                )
                return False
            return True

    def end(self) -> None:
        """Remove the pin for good."""
        with self._guard:
            self._has_ended = True
            if self._name is None:
                return
            try:
                self._storage.delete([self._name])
            except (OSError, CkptError) as exc:  # it will be over by itself
                logger.warning("%s: a pin could not be deleted: %s", self._storage.url, exc)


def _renew_until(over: threading.Event, lease: _Lease, every_s: float) -> None:
    while not over.wait(every_s):
        lease.renew()


def _end(over: threading.Event, lease: _Lease) -> None:
    over.set()
    lease.end()
