"""The history log: what ended beside the checkpoints that are there, one small file each.

It lies in the checkpoints directory, so that it outlives the driver and can be read without one.
Nothing depends on it: what cannot be written or read is left out.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

import msgspec

from pyspark_ckpt.checkpoint.history_entry import (
    BEGUN,
    HistoryEntry,
    aborted_entry,
    savepoint_entry,
)
from pyspark_ckpt.checkpoint.listener import CheckpointListener
from pyspark_ckpt.checkpoint.outcome import AbortedCheckpoint, CompletedCheckpoint
from pyspark_ckpt.checkpoint.savepoint_record import Savepoint
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import HISTORY
from pyspark_ckpt.storage.open import Storage

logger = logging.getLogger(__name__)

KEPT = 1000
"""Entries that stay; older ones are removed."""

_MAX_BYTES = 64 << 10
_REMOVED_AT_ONCE = 100


class HistoryLog(CheckpointListener):
    """The history log in a checkpoints directory; hears of checkpoints as a listener.

    Parameters
    ----------
    storage
        The directory.
    last_id
        The highest id that a checkpoint has had so far; who only reads needs none.
    """

    def __init__(self, storage: Storage, last_id: int = 0) -> None:
        self._storage = storage
        self._last_id = last_id

    def onCheckpointCompleted(self, checkpoint: CompletedCheckpoint) -> None:
        """Know its id: it is in its directory."""
        self._last_id = max(self._last_id, checkpoint.checkpoint_id)

    def onCheckpointAborted(self, checkpoint: AbortedCheckpoint) -> None:
        """Note what was given up, savepoints too."""
        self._last_id = max(self._last_id, checkpoint.checkpoint_id or 0)
        self._note(aborted_entry(checkpoint, self._last_id))

    def note_begun(self, path: str, triggered_at_ms: int, run: str) -> str:
        """Note a savepoint that is being taken, and return the entry's name."""
        return self._note(
            HistoryEntry(
                kind="savepoint",
                status=BEGUN,
                triggered_at_ms=triggered_at_ms,
                duration_ms=0,
                path=path,
                run=run,
                reason="it is being taken, or the driver ended before it was complete",
                last_id=self._last_id,
            )
        )

    def forget(self, name: str) -> None:
        """Remove an entry: something else was noted in its place."""
        try:
            self._storage.delete([f"{HISTORY}/{name}"])
        except (OSError, CkptError) as exc:
            logger.warning("the history log keeps an entry that is over: %s", exc)

    def begun(self) -> dict[str, HistoryEntry]:
        """Return the savepoints that are being taken, or were when a driver ended, by names."""
        return {name: entry for name, entry in self._named() if entry.status == BEGUN}

    def note_savepoint(self, savepoint: Savepoint) -> None:
        """Note a savepoint that was completed."""
        self._note(savepoint_entry(savepoint, self._last_id))

    def entries(self) -> list[HistoryEntry]:
        """Return what was noted, oldest first unless the clock jumped between two checkpoints."""
        return [entry for _, entry in self._named()]

    def _named(self) -> Iterator[tuple[str, HistoryEntry]]:
        for name in self._storage.list(HISTORY)[-KEPT:]:
            if (entry := self._read(name)) is not None:
                yield name, entry

    def _note(self, entry: HistoryEntry) -> str:
        name = f"{entry.last_id:018}-{entry.triggered_at_ms or 0:015}-{secrets.token_hex(4)}.json"
        try:
            self._storage.write(f"{HISTORY}/{name}", [msgspec.json.encode(entry)])
            names = [name for name in self._storage.list(HISTORY) if name.endswith(".json")]
            if len(names) > KEPT + _REMOVED_AT_ONCE:
                self._storage.delete(f"{HISTORY}/{name}" for name in names[:-KEPT])
        except (OSError, CkptError) as exc:
            logger.warning("the history log misses a %s: %s", entry.kind, exc)
        return name

    def _read(self, name: str) -> HistoryEntry | None:
        if not name.endswith(".json"):
            return None
        try:
            content = self._storage.read(f"{HISTORY}/{name}")
            return msgspec.json.decode(content[:_MAX_BYTES], type=HistoryEntry)
        except (OSError, CkptError, msgspec.MsgspecError) as exc:
            logger.warning("an entry of the history log cannot be read: %s", exc)
            return None
