"""The state of an aircraft, and how each flight changes it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from examples.flights.data import REPLAY_ORDER

OUTPUT_SCHEMA = (
    "tailnum string, flights long, moment timestamp_ntz, status string, origin string, "
    "dest string, last_airport string, turnaround_min int, carried_min int, visits long, "
    "hops long, miles long, delays_carried long, minutes_carried long"
)
MAX_TURNAROUND_MIN = 24 * 60
"""After a longer stay on the ground, a late arrival explains no late departure."""

_replay_order = attrgetter(*REPLAY_ORDER)


class Arrival(NamedTuple):
    """Where and when an aircraft landed last, and how late; kept as value state."""

    airport: str
    arrived: datetime
    delay_min: int


class Totals(NamedTuple):
    """The running summary of an aircraft; kept as value state.

    ``hops`` and ``miles`` count flights that left, ``flights`` the cancelled ones too.
    """

    flights: int = 0
    hops: int = 0
    miles: int = 0
    delays_carried: int = 0
    minutes_carried: int = 0

    def after(self, flight: Row, carried_min: int) -> Totals:
        """Return the summary with one more flight."""
        left = flight.status != "cancelled"
        return Totals(
            self.flights + 1,
            self.hops + left,
            self.miles + (flight.distance if left else 0),
            self.delays_carried + (carried_min > 0),
            self.minutes_carried + carried_min,
        )


class Turnarounds(StatefulProcessor):
    """Emit the turnaround and the running summary of each flight of an aircraft.

    All recorded flights leave from New York: a turnaround lasts from the arrival elsewhere to the
    next recorded departure, and the unrecorded way back is part of it.

    Parameters
    ----------
    threshold_min
        A delay is carried over from the previous leg if both that leg's arrival and this departure
        were later than this; the smaller of the two is what was carried.
    """

    def __init__(self, threshold_min: int) -> None:
        self._threshold_min = threshold_min

    def init(self, handle: Any) -> None:
        """Create the states; called once per task and epoch."""
        self._last_arrival = handle.getValueState(
            "last_arrival", "airport string, arrived timestamp_ntz, delay_min int"
        )
        self._totals = handle.getValueState(
            "totals",
            "flights long, hops long, miles long, delays_carried long, minutes_carried long",
        )
        self._visits = handle.getMapState("visits", "airport string", "arrivals long")

    def handleInputRows(
        self, key: tuple[str | None], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        """Process the flights of one aircraft in one epoch, in the order in which they left."""
        totals = Totals(*(self._totals.get() or ()))
        for flight in sorted(rows, key=_replay_order):
            previous = None if flight.status == "cancelled" else self._previous_arrival()
            turnaround_min = _turnaround(previous, flight)
            carried_min = self._carried_over(previous, flight, turnaround_min)
            totals = totals.after(flight, carried_min)
            yield Row(
                tailnum=key[0],
                moment=flight.moment,
                status=flight.status,
                origin=flight.origin,
                dest=flight.dest,
                last_airport=previous.airport if previous else None,
                turnaround_min=turnaround_min,
                carried_min=carried_min,
                visits=self._arrive(flight),
                **totals._asdict(),
            )
        self._totals.update(totals)

    def close(self) -> None:
        """Nothing to close."""

    def _previous_arrival(self) -> Arrival | None:
        stored = self._last_arrival.get()
        return None if stored is None else Arrival(*stored)

    def _carried_over(
        self, previous: Arrival | None, flight: Row, turnaround_min: int | None
    ) -> int:
        if previous is None or turnaround_min is None:
            return 0
        explained = min(previous.delay_min, flight.dep_delay)
        recent = 0 <= turnaround_min < MAX_TURNAROUND_MIN
        return explained if recent and explained > self._threshold_min else 0

    def _arrive(self, flight: Row) -> int | None:
        """Remember an arrival and return the number of visits to that airport."""
        if flight.status == "diverted":
            self._last_arrival.clear()
        if flight.status != "flown":
            return None
        self._last_arrival.update(Arrival(flight.dest, flight.arrived, flight.arr_delay))
        (visits,) = self._visits.getValue((flight.dest,)) or (0,)
        self._visits.updateValue((flight.dest,), (visits + 1,))
        return visits + 1


def _turnaround(previous: Arrival | None, flight: Row) -> int | None:
    """Return the minutes between arrival and departure; records that overlap give less than 0."""
    if previous is None:
        return None
    return int((flight.departed - previous.arrived).total_seconds()) // 60
