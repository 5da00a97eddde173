"""The record of a promotion, as the user gets it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ckpt.history.records import Savepoint
from pyspark_ckpt.restarting.record import InPlaceRestart


@dataclass(frozen=True, slots=True)
class Promotion:
    """What :meth:`Shadow.promote` did.

    Parameters
    ----------
    savepoint : Savepoint
        Of the last epoch of the original program, to go back to.
    restart : InPlaceRestart
        The epoch, the number of subtasks before and after, and the pause.

    Examples
    --------
    >>> restart = ckpt.InPlaceRestart(0, 2, 2, 1_900, "promote")
    >>> ckpt.Promotion(savepoint, restart).restart.pause_ms
    1900
    """

    savepoint: Savepoint
    restart: InPlaceRestart
