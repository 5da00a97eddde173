"""Calls of a processor that quarantine the key if they raise, and keys that an epoch releases."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol

from pyspark_ckpt.errors import CheckpointError, CrashedError, QuarantineError
from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.operator.descriptor import QuarantineLimits
from pyspark_ckpt.operator.quarantine.quarantined_keys import QuarantinedKeys, RowsOfEpoch
from pyspark_ckpt.operator.quarantine.releases import ReleasedKeys
from pyspark_ckpt.operator.rows.mode import Output
from pyspark_ckpt.operator.rows.quarantined import QuarantinedRows
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.keys import StoredKey
from state_backends import StateBackendError

logger = library_logger(__name__)

_NOT_OF_A_KEY = (CheckpointError, CrashedError, QuarantineError, StateBackendError, MemoryError)
"""Errors that say nothing of a key: they fail the epoch, which Spark may repeat."""

Describe = Callable[[Exception], str]
Call = Callable[[], Iterable[Any] | None]
OnError = Callable[[str, Exception, str], str]
"""Called with the method that raised, the error and its description, while the key is current."""


class Releases(Protocol):
    """What an epoch releases."""

    def keys(self) -> ReleasedKeys:
        """Return the stored keys that the epoch releases."""

    def arm(self) -> None:
        """Have later epochs decide what they release."""


class Quarantine:
    """The quarantine of one subtask in one epoch.

    `keeping` is ``None`` if the operator has no quarantine; then `quarantines` is false, and no key
    may be quarantined. `on_error` is called before a key is quarantined, or stays quarantined, and
    returns what the warning of it adds.
    """

    def __init__(
        self,
        states: ProcessorHandle,
        keeping: QuarantinedRows | None,
        key_groups: Iterable[int],
        limits: QuarantineLimits,
        releases: Releases,
        epoch: int,
        where: str,
    ) -> None:
        self.quarantines = keeping is not None
        self.on_error: OnError | None = None
        self._table = states.table
        self._releases = releases
        self._where = where
        self._keys = QuarantinedKeys(states, keeping, key_groups, limits, epoch, where)
        states.timers.quarantined = self._keys.found
        if self._keys.found:
            releases.arm()  # the state may come from another location

    @property
    def quarantined(self) -> Iterable[StoredKey]:
        """The keys that are quarantined."""
        return tuple(self._keys.found)

    @property
    def quarantined_keys(self) -> int:
        """The number of keys that are quarantined."""
        return len(self._keys.found)

    @property
    def quarantined_rows(self) -> int:
        """The number of rows that are kept of quarantined keys."""
        return self._keys.rows

    def handle_rows(
        self,
        step: str,
        call: Call,
        sent: Callable[[], Any],
        output: Output,
        describe: Describe,
        *,
        is_late: bool = False,
    ) -> None:
        """Have the processor handle the rows of the current key, or keep them if it is quarantined.

        If `call` raises, `output` does not get the rows of that call. Rows that are kept are late
        or not when they are released, as they are now.
        """
        if not self._keys.has_current():
            error = self._error_of(call, output)
            if error is None:
                return
            self._quarantine(step, error, describe)
        self._keys.keep(sent(), is_late=is_late)

    def keep_unheld(self, step: str, error: Exception, sent: Any, *, is_late: bool = False) -> None:
        """Keep the rows of the current key, which has a value that its processor cannot get."""
        if not self._keys.has_current():
            self._releases.arm()
            self._keys.quarantine(step, str(error))
            logger.warning("%s: a key is quarantined: %s", self._where, error)
        self._keys.keep(sent, is_late=is_late)

    def fire_timer(self, step: str, call: Call, output: Output, describe: Describe) -> bool:
        """Have the processor handle a timer of the current key; return whether the timer fired."""
        if self._keys.has_current():
            return False
        error = self._error_of(call, output)
        if error is not None:
            self._quarantine(step, error, describe)
        return error is None

    def released(self) -> Iterator[tuple[StoredKey, list[RowsOfEpoch]]]:
        """Make each released key the current one; yield it with its rows by epoch.

        The caller calls :meth:`release` for each.
        """
        if not self._keys.found:
            return
        keys = self._releases.keys()
        for stored in sorted(key for key in self._keys.found if key[1] in keys):
            self._table.begin_part([stored])
            self._table.enter(0)
            yield stored, self._keys.kept()

    def release(self, step: str, call: Call, output: Output, describe: Describe) -> None:
        """Give the kept rows of a key to the processor; the key stays quarantined if it raises."""
        stored = self._table.current.key_group or b"", self._table.current.key
        error = self._error_of(call, output)
        self._table.begin_part([stored])
        self._table.enter(0)
        if error is None:
            self._keys.remove()
        else:
            text = describe(error)
            more = self._call_on_error(step, error, text)
            logger.warning("%s: a released key stays quarantined: %s%s", self._where, text, more)
            self._keys.note_error(step, text)

    def end(self) -> None:
        """End the epoch, after the last call of the processor for a key."""
        self._keys.end()

    def _error_of(self, call: Call, output: Output) -> Exception | None:
        """Make a call; return what it raised, and undo it then."""
        rows = output.rows
        self._table.begin_call()
        made: Any = None
        try:
            made = call()
            output.extend(made)
        except _NOT_OF_A_KEY:
            raise
        except Exception as exc:
            # The error's traceback would keep a generator that stands at its yield, whose
            # `finally` would then write at any later time, into the state of another key.
            if isinstance(made, Generator):
                with suppress(Exception):
                    made.close()
            self._table.undo_call()
            output.cut(rows)
            return exc
        self._table.keep_call()
        return None

    def _quarantine(self, step: str, error: Exception, describe: Describe) -> None:
        text = describe(error)
        more = self._call_on_error(step, error, text)
        self._releases.arm()
        self._keys.quarantine(step, text)
        logger.warning(
            "%s: a key is quarantined, because %s raised %s%s", self._where, step, text, more
        )

    def _call_on_error(self, step: str, error: Exception, text: str) -> str:
        return "" if self.on_error is None else self.on_error(step, error, text)
