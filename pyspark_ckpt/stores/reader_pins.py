"""Pins: files with which readers of a snapshot keep its files from being deleted, for a while.

A pin is ``_reader-<expiry>-<random>.json`` in the directory that the snapshot's paths start from:
the checkpoints directory, or that of the savepoint. It names the files that are read, and counts
until its expiry, so the pin of a dead reader ends by itself. A reader renews its pin with a new
file.

A reader writes its pin first, and then checks that the snapshot is still complete. Whoever deletes
first makes the snapshot incomplete, or writes a barrier (``_closed-<expiry>-<random>.json``), and
then looks for pins. So one of the two always sees the other.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec

from pyspark_ckpt.errors import CheckpointNotFoundError, CkptError, CorruptFileError
from pyspark_ckpt.formats.layout import METADATA_NAME, checkpoint_id_of, checkpoint_name
from pyspark_ckpt.formats.metadata_check import check_path
from pyspark_ckpt.storage.base import JSON_ERRORS, CoordinatorStorage, corrupt_file
from pyspark_ckpt.storage.open import Storage
from pyspark_ckpt.stores.open import find_store

GRACE_MS = 60_000
"""How long a pin counts after its expiry, because clocks of machines differ."""

_NAME = re.compile(r"_(reader|closed)-([0-9]{15})-([0-9a-f]{16})\.json")
_MAX_BYTES = 1 << 28
_MOST_MISSED = 10
_PAUSE_S = 0.1
_MAX_MS = 10**15 - 1


class PinFile(NamedTuple):
    """A pin, or the barrier of a deletion, by its name."""

    name: str
    is_pin: bool
    expires_ms: int
    token: str = ""

    def counts(self, now_ms: int) -> bool:
        """Return whether it still counts."""
        return now_ms <= self.expires_ms + GRACE_MS


class _Pin(msgspec.Struct, frozen=True, kw_only=True):
    by: str
    files: tuple[str, ...] = ()
    format: int = 1


def pin_name(expires_ms: int, token: str | None = None) -> str:
    """Return the name of a pin; without a token of 16 hexadecimal digits it is a new one."""
    return f"_reader-{min(expires_ms, _MAX_MS):015}-{token or secrets.token_hex(8)}.json"


def barrier_name(expires_ms: int) -> str:
    """Return a new, unique name for the barrier of a deletion."""
    return f"_closed-{min(expires_ms, _MAX_MS):015}-{secrets.token_hex(8)}.json"


def encode_pin(by: str, files: Iterable[str] = ()) -> bytes:
    """Return the bytes of a pin or barrier."""
    return msgspec.json.encode(_Pin(by=by, files=tuple(files)))


def pin_files(storage: CoordinatorStorage) -> list[PinFile]:
    """Return the pins and barriers in a directory, also those that are over."""
    found = (_NAME.fullmatch(name) for name in storage.list())
    return [PinFile(each[0], each[1] == "reader", int(each[2]), each[3]) for each in found if each]


def pinned_files(storage: CoordinatorStorage, now_ms: int) -> set[str]:
    """Return the paths that readers need.

    ``CorruptFileError`` is raised if a pin cannot be read, or is listed again and again and never
    found. Nothing may be deleted then before the pin is over.
    """
    read: dict[str, tuple[str, ...]] = {}
    missed: Counter[str] = Counter()
    is_complete = False
    while not is_complete:
        pins = [each for each in pin_files(storage) if each.is_pin and each.counts(now_ms)]
        for each in pins:
            if each.name not in read:
                files = _files_of(storage, each.name)
                if files is None:  # its reader has ended, or has a newer pin: look again
                    missed[each.name] += 1
                    if missed[each.name] == _MOST_MISSED:
                        raise _never_found(storage, each.name)
                    time.sleep((missed[each.name] - 1) * _PAUSE_S)  # a listing may be old
                    break
                read[each.name] = files
        else:
            is_complete = True
    return {path for files in read.values() for path in files}


def _never_found(storage: CoordinatorStorage, name: str) -> CorruptFileError:
    return corrupt_file(
        storage.url_of(name),
        "it is in the directory and cannot be found, so what somebody reads is unknown",
        "delete it if nobody reads the checkpoints",
    )


def _files_of(storage: CoordinatorStorage, name: str) -> tuple[str, ...] | None:
    try:
        pin = msgspec.json.decode(storage.read_start(name, _MAX_BYTES), type=_Pin)
    except FileNotFoundError:
        return None
    except JSON_ERRORS as exc:
        raise corrupt_file(
            storage.url_of(name),
            f"it should hold the files that somebody reads ({exc})",
            "delete it if nobody reads the checkpoints",
        ) from exc
    for path in pin.files:
        check_path(path, storage.url_of(name))
    return pin.files


@contextmanager
def name_subsumed(directory: Storage) -> Iterator[None]:
    """Replace the error of a missing file if retention has just removed the ``chk-N``.

    Retention removes ``_metadata`` before the files that only this checkpoint needs. Therefore a
    file that is missing while ``_metadata`` exists was not removed by retention.
    """
    try:
        yield
    except (CorruptFileError, FileNotFoundError) as exc:
        number = checkpoint_id_of(directory.name)
        if number is None or directory.exists(METADATA_NAME):
            raise
        raise CheckpointNotFoundError(
            f"{directory.url} was subsumed by newer checkpoints while it was read: its query runs, "
            f"and retains only its newest checkpoints. {_advice(directory)}"
        ) from exc


def _advice(directory: Storage) -> str:
    checkpoints = directory.parent()
    try:
        with closing(find_store(checkpoints)) as store:
            newest = max(store.ids(), default=None)
    except (CkptError, OSError):
        newest = None
    named = "" if newest is None else f"Use {checkpoints.url_of(checkpoint_name(newest))}, or "
    return (
        f"{named or 'Use '}a savepoint, which retention does not remove; or raise "
        "spark.ckpt.execution.checkpointing.num-retained"
    )
