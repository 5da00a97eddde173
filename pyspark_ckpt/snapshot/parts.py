"""The parts of one read by several processes: what each reads, and the pin that keeps its files.

Who plans the read writes a pin for each part. The process that reads a part renews the pins of all
parts that are left, and removes that of its own at the end. So the snapshot is kept from planning
until the last part was read. If all these processes die, the pins are over after their time.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError
from pyspark_ckpt.formats.handle import Handle
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.pin import LEASE_MS
from pyspark_ckpt.stores.reader_pins import PinFile, encode_pin, pin_files, pin_name

_READ_DIGITS = 8
"""The first digits of a pin's token are those of the read, the others those of the part."""

_SPREAD_MS = 60_000
"""Up to so much longer than its lease a renewed pin counts."""

_RENEWALS = 3
_NEW_MS = LEASE_MS // _RENEWALS // 2
"""A pin that was written so short a time ago needs no renewal."""

_AT_ONCE = 8
"""Pins that are written at the same time."""

logger = library_logger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """What one process reads of a snapshot; it travels to that process."""

    subtask: int | None
    metadata: bytes
    token: str


def parts_of(source: RestoreSource, uid: str, subtasks: Sequence[int | None]) -> list[Part]:
    """Return the parts of a read, and pin each of them. The caller has a pin until this returns."""
    read = secrets.token_hex(_READ_DIGITS // 2)
    parts = [
        Part(subtask, _metadata_of(source, uid, subtask), f"{read}{number:0{_READ_DIGITS}x}")
        for number, subtask in enumerate(subtasks)
    ]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda part: _pin(source, part), parts))
    return parts


def _pin(source: RestoreSource, part: Part) -> None:
    of_part = RestoreSource.of_metadata(source.path, part.metadata).metadata
    files = sorted({file.path for file in of_part.files()})
    by = f"{socket.gethostname()}, process {os.getpid()}, a job that it planned"
    try:
        name = pin_name(now_ms() + LEASE_MS, part.token)
        source.storage.write(name, [encode_pin(by, files)])
    except (OSError, CkptError) as exc:
        logger.warning(
            "%s: the pin of a job could not be written, so what it reads may be deleted "
            "meanwhile: %s",
            source.storage.url,
            exc,
        )


def _metadata_of(source: RestoreSource, uid: str, subtask: int | None) -> bytes:
    """Return the metadata with the files of one subtask only."""
    metadata = source.metadata
    operators = tuple(
        msgspec.structs.replace(
            operator,
            handles=tuple(
                handle if subtask in (None, handle.subtask) else _without_files(handle)
                for handle in operator.handles
            ),
        )
        for operator in metadata.operators
        if operator.uid == uid
    )
    part = msgspec.structs.replace(
        metadata, operators=operators, source_logs=(), stored_spark_operators=msgspec.UNSET
    )
    return encode_metadata(part)


def _without_files(handle: Handle) -> Handle:
    """Return a handle that only says which states the subtask has."""
    return msgspec.structs.replace(handle, base=None, segments=())


class PartPin:
    """The pin of a part, for the process that reads the part."""

    def __init__(self, source: RestoreSource, part: Part) -> None:
        self._path = source.path
        self._storage = source.storage
        self._token = part.token
        self._over = threading.Event()

    def hold(self) -> bool:
        """Renew the pins of the read from now on; return whether this part is still kept."""
        now = now_ms()
        if not any(each.token == self._token and now < each.expires_ms for each in self._pins()):
            return False
        self._renew_all()
        threading.Thread(target=self._keep, name="pyspark_ckpt pin", daemon=True).start()
        return True

    def check(self) -> None:
        """Check that the pin still counts.

        ``CheckpointNotFoundError`` is raised if the pin is over, because nothing was read for long.
        """
        if not any(each.token == self._token and each.counts(now_ms()) for each in self._pins()):
            raise CheckpointNotFoundError(
                f"{self._path} was not read for so long that its files may be gone: read it again"
            )

    def leave(self) -> None:
        """Leave the pin to the next attempt to read the part; it will be over by itself."""
        self._over.set()

    def close(self) -> None:
        """Remove the pin, unless it is left."""
        if not self._over.is_set():
            self._over.set()
            # The task of another part may renew the pin meanwhile; see `_renew`.
            try:
                while pins := [each for each in self._pins() if each.token == self._token]:
                    if not self._delete(pins):
                        return
            except (OSError, CkptError) as exc:  # it will be over by itself
                self._warn("the pin of a job stays until it is over", exc)

    def _warn(self, what: str, error: Exception) -> None:
        logger.warning("%s: %s: %s", self._storage.url, what, error)

    def _pins(self) -> list[PinFile]:
        """Return the pins of all parts of the read."""
        read = self._token[:_READ_DIGITS]
        return [
            each for each in pin_files(self._storage) if each.is_pin and each.token.startswith(read)
        ]

    def _keep(self) -> None:
        while not self._over.wait(LEASE_MS / 1000 / _RENEWALS):
            self._try_to_renew_all()

    def _try_to_renew_all(self) -> None:
        try:
            self._renew_all()
        except (OSError, CkptError) as exc:  # the next time may be better
            self._warn("the pins of a job could not be looked for", exc)

    def _renew_all(self) -> None:
        # No two processes give a pin the same name: one of them may delete its own again. Nobody
        # renews a new pin: its process may be about to delete it again, and the copy would stay.
        now = now_ms()
        expires_ms = now + LEASE_MS + secrets.randbelow(_SPREAD_MS)
        for each in self._pins():
            if each.expires_ms < now + LEASE_MS - _NEW_MS:
                self._renew(each, expires_ms)

    def _renew(self, pin: PinFile, expires_ms: int) -> None:
        try:
            content = self._storage.read(pin.name)
            renewed = pin_name(expires_ms, pin.token)
            self._storage.write(renewed, [content])
            if self._storage.exists(pin.name):
                self._delete([pin])
            else:  # its part was read just now, and its task may not have seen the new pin
                self._storage.delete([renewed])
        except FileNotFoundError:
            pass  # its part was read, or another process renewed it
        except (OSError, CkptError) as exc:
            logger.warning("%s: a pin could not be renewed: %s", self._storage.url, exc)

    def _delete(self, pins: Sequence[PinFile]) -> bool:
        """Delete pins; return whether that was possible."""
        try:
            self._storage.delete([each.name for each in pins])
        except (OSError, CkptError) as exc:  # it will be over by itself
            logger.warning("%s: a pin could not be deleted: %s", self._storage.url, exc)
            return False
        return True
