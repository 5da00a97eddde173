"""What the first page says of each query in addition to its summary: skew, growth, unneeded files.

The other pages say the same in full, from the same functions. Here the cost has bounds:

* a look at a query reads at most `NOTES_SHOWN` notes and :data:`CHECKPOINTS_READ` checkpoints,
* it holds for :data:`HOLDS_MS`, because a query records its notes about as often,
* it holds :data:`HOLDS_TIMES` as long as it took, so slow stores and many files are not looked at
  all the time,
* a page begins no further look after :data:`PAGE_MS`; the next page continues with the others.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_ckpt.clock import monotonic_ms
from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.queries import QuerySummary
from pyspark_ckpt.console.data.snapshots import (
    KeptFiles,
    OperatorTable,
    bundled_kept_files,
    kept_files,
    most_skewed,
)
from pyspark_ckpt.console.data.states import Growth, Trend, growth_of
from pyspark_ckpt.console.data.timeline import NOTES_SHOWN
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.history.run_log import RecordedRuns

CHECKPOINTS_READ = 20
"""A query that retains more checkpoints than this has its files judged on its own page only."""

HOLDS_MS = 30_000
HOLDS_TIMES = 100
PAGE_MS = 1000


@dataclass(frozen=True, slots=True)
class Look:
    """What was found at a query; `kept` is ``None`` if its files could not be listed."""

    growth: Growth
    kept: KeptFiles | None


@dataclass(frozen=True, slots=True)
class _Held:
    """A look, when it began, and until when no other is needed."""

    look: Look
    at_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Glance:
    """A query on the first page; `look` is ``None`` until there was time to look at it."""

    skew: OperatorTable | None
    look: Look | None

    @property
    def fastest_growing(self) -> Trend | None:
        """The state that grows fastest, ``None`` if no state is known to grow."""
        return None if self.look is None else self.look.growth.fastest

    @property
    def bytes_per_epoch(self) -> float | None:
        """By how much that state grows in an epoch."""
        return None if self.fastest_growing is None else self.fastest_growing.bytes_per_epoch

    @property
    def unneeded(self) -> int | None:
        """How many data files nothing needs, ``None`` if that is not known."""
        kept = None if self.look is None else self.look.kept
        return None if kept is None or kept.problem is not None else len(kept.unneeded)


class Glances:
    """Looks at queries, each at most every half minute; used by several threads."""

    def __init__(self, *, has_data: bool) -> None:
        self._has_data = has_data
        self._lock = threading.Lock()
        self._looks: dict[str, _Held] = {}

    def of(self, summaries: Sequence[QuerySummary]) -> Mapping[str, Glance]:
        """Return what the first page says of queries, by the keys of their places.

        What is known of other queries is forgotten.
        """
        # A page does not wait for the looks of another one, which may be at a slow store.
        if self._lock.acquire(blocking=False):
            try:
                self._look_at([each.place for each in summaries])
            finally:
                self._lock.release()
        looks = {key: held.look for key, held in dict(self._looks).items()}
        return {
            each.place.key: Glance(
                None if each.metadata is None else most_skewed(each.metadata),
                looks.get(each.place.key),
            )
            for each in summaries
        }

    def _look_at(self, places: Sequence[QueryPlace]) -> None:
        known = {place.key for place in places}
        self._looks = {key: each for key, each in self._looks.items() if key in known}
        began_ms = monotonic_ms()
        # Those that were never looked at come first, so that each page continues the one before.
        for place in sorted(places, key=self._looked_at_ms):
            held = self._looks.get(place.key)
            at_ms = monotonic_ms()
            if held is not None and at_ms < held.until_ms:
                continue
            if at_ms - began_ms > PAGE_MS:
                break
            look = self._look(place)
            took_ms = monotonic_ms() - at_ms
            until_ms = at_ms + max(HOLDS_MS, HOLDS_TIMES * took_ms)
            self._looks[place.key] = _Held(look, at_ms, until_ms)

    def _looked_at_ms(self, place: QueryPlace) -> int:
        held = self._looks.get(place.key)
        return 0 if held is None else held.at_ms

    def _look(self, place: QueryPlace) -> Look:
        notes = RecordedRuns(place.checkpoints).notes(NOTES_SHOWN)
        growth = growth_of([each for note in notes for each in note.checkpoints])
        try:
            kept = (
                kept_files(place, most_checkpoints=CHECKPOINTS_READ, measures=False)
                if self._has_data
                else bundled_kept_files(place)
            )
        except (OSError, CkptError):  # its own page says why
            kept = None
        return Look(growth, kept)
