"""The coordinator's work beside checkpoints: requests, and the leftovers of earlier drivers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pyspark_ckpt.checkpoint.time_limit import in_time
from pyspark_ckpt.checkpoint.tolerance import Patience, patience_ms
from pyspark_ckpt.errors import CkptError, FencedError
from pyspark_ckpt.query.requests import RequestHandler
from pyspark_ckpt.restore.location.exchange import remove_leftovers_of_restarts
from pyspark_ckpt.settings import Settings
from pyspark_ckpt.storage.open import Storage


def remove_leftovers(
    remove_interrupted_savepoints: Callable[[], None],
    check_not_fenced: Callable[[], None],
    location: Storage,
) -> None:
    """Remove what drivers before this one left behind, in the savepoints and in the location."""
    remove_interrupted_savepoints()
    with suppress(FencedError):  # what is in the location may be another driver's work
        remove_leftovers_of_restarts(location, check_not_fenced)


class Housekeeping:
    """Does the work that is due between two checkpoints."""

    def __init__(
        self,
        requests: RequestHandler,
        remove_interrupted: Callable[[], None],
        settings: Settings,
        clock: Callable[[], int],
        poll_ms: int,
    ) -> None:
        self._clock = clock
        self._poll_ms = poll_ms
        self._polled_ms: int | None = None
        self._timeout_ms = settings.timeout_ms
        limit_ms = patience_ms(settings)
        self._once = [
            ("answering requests of an earlier driver", requests.refuse_interrupted),
            ("removing savepoints that were interrupted", remove_interrupted),
        ]
        self._poll = ("looking for requests", requests.poll)
        self._patience = {
            what: Patience(what, limit_ms, clock) for what, _ in (*self._once, self._poll)
        }

    def do(self, *, has_won: bool) -> None:
        """Do the steps that are due.

        `has_won` says whether this run has committed an epoch, because only then is it certain that
        earlier drivers have ended. An error is raised only if a step has failed for longer than
        checkpoints may fail.
        """
        if has_won:
            self._once = [step for step in self._once if not self._is_done(*step)]
        now_ms = self._clock()
        if self._polled_ms is None or now_ms - self._polled_ms >= self._poll_ms:
            self._polled_ms = now_ms
            self._is_done(*self._poll)

    def _is_done(self, what: str, step: Callable[[], None]) -> bool:
        patience = self._patience[what]
        try:
            in_time(what, self._timeout_ms, step)
        except (OSError, CkptError) as exc:
            patience.failed(exc)
            return False
        patience.succeeded()
        return True
