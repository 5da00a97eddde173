"""Exchanges what is in a ``checkpointLocation`` for something else, all or in the end all of it.

A marker says what goes out to where and what comes in from where; it is durable before the first
rename and goes after the last. Each rename is done or not done, which shows in what lies where, so
whoever finds the marker does what is left. While it stands the location is no query's.
"""

from __future__ import annotations

import msgspec

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import ROLLBACK_MARKER
from pyspark_ckpt.formats.rolled_back import RolledBack, write_rolled_back
from pyspark_ckpt.storage.open import LocalStorage


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """What a marker says.

    `kept` and `staged` are directories inside the location: what goes out is kept in the one, what
    comes in is taken from the other. `rolled_back` are the epochs that are void after it.
    """

    to: str
    kept: str
    staged: str
    outgoing: tuple[str, ...]
    incoming: tuple[str, ...]
    rolled_back: tuple[RolledBack, ...] = ()


def exchange(location: LocalStorage, wanted: Exchange) -> None:
    """Exchange what is in a location; durable on return."""
    location.write(ROLLBACK_MARKER, [msgspec.json.encode(wanted)])
    finish_exchange(location, wanted)


def begun_exchange(location: LocalStorage) -> Exchange | None:
    """Return the exchange that was begun in a location, ``None`` if there is none.

    Raises
    ------
    CorruptFileError
        If the marker was changed.
    """
    if not location.exists(ROLLBACK_MARKER):
        return None
    try:
        return msgspec.json.decode(location.read(ROLLBACK_MARKER), type=Exchange)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise CorruptFileError(
            f"{location.root}/{ROLLBACK_MARKER} was changed ({exc}): move the directories beside "
            "it by hand, or restore a checkpoint into a fresh checkpointLocation"
        ) from exc


def finish_exchange(location: LocalStorage, begun: Exchange) -> None:
    """Do what is left of an exchange; harmless at any point of it."""
    for name in begun.outgoing:
        if not location.exists(f"{begun.kept}/{name}"):
            location.move(name, f"{begun.kept}/{name}")
    for name in begun.incoming:
        if location.exists(f"{begun.staged}/{name}"):
            location.move(f"{begun.staged}/{name}", name)
    if begun.rolled_back:
        write_rolled_back(location, begun.rolled_back)
    location.delete_directory(begun.staged)
    location.delete([ROLLBACK_MARKER])
