"""The steps at which a test can crash an epoch."""

from __future__ import annotations

from enum import Enum

from pyspark_ckpt.errors import CrashedError


class CrashStep(str, Enum):
    """The steps of an epoch at which a test can crash it, in their order.

    Examples
    --------
    >>> from pyspark_ckpt.testing import CrashStep
    >>> harness.crashAt(CrashStep.BEFORE_SEGMENT)
    """

    AFTER_BASE = "after a new base snapshot, which only an epoch with a long changelog writes"
    BEFORE_INIT = "before init"
    AFTER_INIT = "after init"
    AFTER_FIRST_KEY = "after the first call with rows or, without rows, of a timer"
    AFTER_ROWS = "after the rows"
    AFTER_TIMERS = "after the due timers and close"
    BEFORE_SEGMENT = "at the barrier, before the segment"
    AFTER_SEGMENT = "at the barrier, after the segment, before the handle"


class PlannedCrash:
    """Raises once, at a planned step."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._step: CrashStep | None = None

    def plan(self, step: CrashStep) -> None:
        """Crash when `step` is reached next; replaces an earlier plan."""
        self._step = step

    def reach(self, step: CrashStep) -> None:
        """Note that an epoch reached a step."""
        if step is not self._step:
            return
        self._step = None
        raise CrashedError(
            f"{self._where}: crashed {step.value}, as planned with crashAt; the harness is as "
            "after the last epoch that ended: repeat the call to repeat the epoch"
        )
