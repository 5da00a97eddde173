"""The record of a restart in place, as the user gets it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InPlaceRestart:
    """What :meth:`CheckpointedQuery.rescale` and :meth:`CheckpointedQuery.restartWith` did.

    Parameters
    ----------
    epoch : int
        The last epoch before the restart.
    parallelism_before, parallelism : int
        The number of subtasks before and after.
    pause_ms : int
        From the end of the last epoch before the restart to the commit of the first epoch after it.
        If the query was idle, it begins with the call. If there is no input, it ends when the query
        waits for input.
    reason : str
        Who asked for it, or the rule that did and what it saw.

    Examples
    --------
    >>> done = ckpt.results.InPlaceRestart(41, 2, 8, 2_300, "rescale(8)")
    >>> done.parallelism
    8
    """

    epoch: int
    parallelism_before: int
    parallelism: int
    pause_ms: int
    reason: str
