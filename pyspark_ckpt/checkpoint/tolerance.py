"""How long repeated work may fail in a row before its query must be stopped."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ckpt.log_fields import library_logger
from pyspark_ckpt.settings import Settings

logger = library_logger(__name__)

SHORTEST_MS = 60_000


def patience_ms(settings: Settings) -> int:
    """Return how long cleaning or requests may fail: as long as checkpoints may fail."""
    tolerable = settings.tolerable_failed_checkpoints + 1
    return max(SHORTEST_MS, tolerable * settings.interval_ms)


class Patience:
    """Counts the time that repeated work fails, and raises the error after the limit.

    The log has equal failures in a row once, and an entry when the work succeeds again.

    `clock` returns milliseconds that never go back.
    """

    def __init__(self, what: str, limit_ms: int, clock: Callable[[], int]) -> None:
        self._what = what
        self._limit_ms = limit_ms
        self._clock = clock
        self._failing_since_ms: int | None = None
        self._logged: str | None = None

    def succeeded(self) -> None:
        """Note a success: the next failure is the first one."""
        if self._failing_since_ms is not None:
            seconds = (self._clock() - self._failing_since_ms) / 1000
            logger.warning("%s succeeds again after %.1f s", self._what, seconds)
        self._failing_since_ms = self._logged = None

    def failed(self, error: Exception) -> None:
        """Note a failure; raise it if the work has failed for too long."""
        now_ms = self._clock()
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        text = f"{type(error).__name__}: {error}"
        if text != self._logged:
            logger.warning("%s failed, and is tried again: %s", self._what, text)
            self._logged = text
        if now_ms - self._failing_since_ms >= self._limit_ms:
            raise error
