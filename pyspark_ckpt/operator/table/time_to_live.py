"""Time to live: how long an entry of a state counts after it was last written.

Each entry carries the time of its last write, not of its end. So another duration counts at once
for all entries, and so do switching the time to live on and off.

Stored form of a stamped entry: MessagePack int64 (``d3``, processing time) or uint64 (``cf``, event
time), then the entry itself, which never starts with either.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.formats.handle import TtlDescriptor
from pyspark_ckpt.formats.modes import TtlTime, TtlUpdate, TtlVisibility
from pyspark_ckpt.operator.table.table import CurrentKey
from pyspark_ckpt.operator.time import EpochClock, duration_ms


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """The time to live of a state; given in place of PySpark's ``ttlDurationMs``.

    Parameters
    ----------
    duration_ms : int or timedelta
        How long an entry counts, above zero: in milliseconds, or as a ``timedelta``.
    time : str
        ``processing``, as in PySpark and Flink, or ``event``. In event time an entry is as old as
        the newest row of its key in the epoch that wrote it, or as the watermark if that is later.
        It expires when the watermark passes that time plus the duration. Rows of earlier epochs do
        not count: an entry that a later epoch writes again for an older row expires earlier.
    update : str
        ``OnCreateAndWrite``: only writing makes an entry young again. ``OnReadAndWrite``: reading
        does too, unless the entry has expired.
    visibility : str
        ``NeverReturnExpired``, or ``ReturnExpiredIfNotCleanedUp``: an expired entry is returned
        once, if it was not cleaned up before. As in Flink, the read that finds an expired entry
        removes it.

    Raises
    ------
    StateUseError
        If a value is not allowed.

    Examples
    --------
    >>> from pyspark_ckpt import StateTtlConfig
    >>> hour = StateTtlConfig(3_600_000, update="OnReadAndWrite")
    >>> visits = handle.getListState("visits", "city string", hour)
    """

    duration_ms: int
    time: str = TtlTime.PROCESSING_TIME.value
    update: str = TtlUpdate.ON_CREATE_AND_WRITE.value
    visibility: str = TtlVisibility.NEVER_RETURN_EXPIRED.value

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "duration_ms", duration_ms(self.duration_ms))
        except ValueError as exc:
            raise StateUseError(
                f"time to live is {self.duration_ms!r}: {exc}; give milliseconds, a whole number "
                "above 0"
            ) from exc
        for name, kind in (
            ("time", TtlTime),
            ("update", TtlUpdate),
            ("visibility", TtlVisibility),
        ):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(value).value)
            except ValueError:
                allowed = ", ".join(each.value for each in kind)
                raise StateUseError(
                    f"{name} of StateTtlConfig is {value!r}: allowed is {allowed}"
                ) from None


_STAMP = struct.Struct(">BQ")
_MARKS = {TtlTime.PROCESSING_TIME: 0xD3, TtlTime.EVENT_TIME: 0xCF}
STAMP_MARKS = frozenset(_MARKS.values())
"""First bytes of entries that carry a time."""

STAMP_BYTES = _STAMP.size

NEVER_EXPIRES_MS = 1 << 62
"""An edit writes it as the time of entries that never expire; it is later than any time."""


class TimeToLive:
    """A state's time to live in one epoch."""

    def __init__(
        self, descriptor: TtlDescriptor, clock: EpochClock, current: CurrentKey, where: str
    ) -> None:
        self.is_in_event_time = descriptor.time is TtlTime.EVENT_TIME
        self._now_ms = now_ms(descriptor.time, clock, where)
        self._current = current if self.is_in_event_time else None
        self._mark = _MARKS[descriptor.time]
        self._duration_ms = descriptor.duration_ms
        self._since_ms = descriptor.since_ms
        self._updates_on_read = descriptor.update is TtlUpdate.ON_READ_AND_WRITE
        self._hides_expired = descriptor.visibility is TtlVisibility.NEVER_RETURN_EXPIRED

    def stamp(self) -> bytes:
        """Return the stamp of an entry that is written now.

        In event time it is the time of the newest row of the key in this epoch, at least the
        watermark. So a late row in a later epoch may give an entry an earlier stamp than it had.
        Only :meth:`stamp_over` compares the two.

        It is empty before the first watermark if the rows have no event time, as in an initial
        state. Then the entry ages from the first watermark.
        """
        written_ms = self._now_ms
        if self._current is not None and self._current.event_time_ms is not None:
            written_ms = max(written_ms, self._current.event_time_ms)
        if self.is_in_event_time and written_ms <= 0:
            return b""
        return _STAMP.pack(self._mark, max(written_ms, 0))

    def stamp_over(self, data: bytes) -> bytes:
        """Return the later of :meth:`stamp` and an entry's stamp: no entry becomes older."""
        stamp = self.stamp()
        return max(stamp, data[: _STAMP.size]) if data[0] == self._mark else stamp

    def shown(self, data: bytes) -> bytes | None:
        """Return what reading an entry would give: ``None`` if it is expired and hidden."""
        if self._hides_expired and self.is_expired(data):
            return None
        return without_stamp(data)

    def is_expired(self, data: bytes) -> bool:
        """Return whether an entry is expired."""
        written_ms = self._since_ms
        if data[0] == self._mark:
            written_ms = _STAMP.unpack_from(data)[1]
        # An entry without a stamp ages from when the time to live was switched on.
        return written_ms is not None and written_ms + self._duration_ms <= self._now_ms

    def read(self, data: bytes) -> tuple[bytes | None, bytes | None]:
        """Return what reading an entry gives, and what it leaves stored.

        As in Flink, reading removes an expired entry, which is returned this once if it is not
        hidden, and it renews live entries only. What stays as it is, is `data` itself.
        """
        if self.is_expired(data):
            return None if self._hides_expired else without_stamp(data), None
        return without_stamp(data), self.renewed(data) or data

    def renewed(self, data: bytes) -> bytes | None:
        """Return a live entry with the stamp of a read, ``None`` if the stamp stays."""
        if not self._updates_on_read:
            return None
        fresh = self.stamp_over(data) + without_stamp(data)
        return None if fresh == data else fresh


class SwitchedOff:
    """Replaces :class:`TimeToLive` for a state that no longer has a time to live."""

    def stamp(self) -> bytes:
        """Return the stamp of an entry that is written now: it is empty."""
        return b""

    def stamp_over(self, data: bytes) -> bytes:  # noqa: ARG002  # as in TimeToLive
        """Return the empty stamp; there is no time to keep."""
        return b""

    def shown(self, data: bytes) -> bytes:
        """Return an entry without its stamp."""
        return without_stamp(data)

    def read(self, data: bytes) -> tuple[bytes, bytes]:
        """Return an entry without its stamp, and the entry itself, which reading leaves."""
        return without_stamp(data), data

    def renewed(self, data: bytes) -> None:  # as in TimeToLive
        """Return ``None``: reading changes no entry."""


Aging = TimeToLive | SwitchedOff


def now_ms(time: TtlTime, clock: EpochClock, where: str) -> int:
    """Return the time of the epoch in which entries age."""
    if time is TtlTime.PROCESSING_TIME:
        return clock.processing_time_ms
    if clock.watermark_ms is None:
        raise StateUseError(
            f"{where}: its time to live is in event time, the stream has no watermark: call "
            "withWatermark before key_by"
        )
    return clock.watermark_ms


def stamp_of(time: TtlTime, written_ms: int) -> bytes:
    """Return the stamp of an entry that was written at a time."""
    return _STAMP.pack(_MARKS[time], max(written_ms, 0))


def stamp_mark(time: TtlTime) -> int:
    """Return the first byte of the stamps of a time."""
    return _MARKS[time]


def without_stamp(data: bytes) -> bytes:
    """Return an entry without the time it was written at, if it has one."""
    return data[_STAMP.size :] if data[0] in STAMP_MARKS else data
