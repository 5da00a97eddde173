"""The same results from plain pandas over the whole year at once, and the comparison.

This code shares only the order of an aircraft's flights with the processor. It works on columns,
not rows, and on groups of the whole year, not state.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from examples.flights.data import REPLAY_ORDER

COLUMN_TYPES = {
    "tailnum": "object",
    "flights": "Int64",
    "moment": "datetime64[ns]",
    "status": "object",
    "origin": "object",
    "dest": "object",
    "last_airport": "object",
    "turnaround_min": "Int64",
    "carried_min": "Int64",
    "visits": "Int64",
    "hops": "Int64",
    "miles": "Int64",
    "delays_carried": "Int64",
    "minutes_carried": "Int64",
}
_DAY_MIN = 1440


def expected_turnarounds(flights: pd.DataFrame, threshold_min: pd.Series) -> pd.DataFrame:
    """Compute what the stream should emit.

    Parameters
    ----------
    flights
        From :func:`examples.flights.data.load_flights`.
    threshold_min
        The delay threshold in force at each of them.
    """
    table = flights.assign(threshold_min=threshold_min).sort_values(REPLAY_ORDER)
    left = table["departed"].notna()
    table = table.join(_previous_legs(table[left]))
    on_ground = (table["departed"] - table["last_arrived"]).dt.total_seconds() / 60
    explained = table[["last_delay", "dep_delay"]].astype(float).min(axis=1, skipna=False)
    is_carried = (explained > table["threshold_min"]) & (on_ground >= 0) & (on_ground < _DAY_MIN)
    flown = table[table["status"] == "flown"]
    table = table.assign(
        turnaround_min=on_ground,
        carried_min=explained.where(is_carried, 0),
        visits=flown.groupby(["tailnum", "dest"], dropna=False).cumcount() + 1,
    )
    sums = pd.DataFrame(
        {
            "flights": 1,
            "hops": left.astype(int),
            "miles": table["distance"].where(left, 0),
            "delays_carried": is_carried.astype(int),
            "minutes_carried": table["carried_min"],
        }
    )
    running = sums.groupby(table["tailnum"], dropna=False).cumsum()
    return table.assign(**running)


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Return output rows with their types, in a unique order."""
    typed = rows[list(COLUMN_TYPES)].replace({None: np.nan}).astype(COLUMN_TYPES)
    return typed.sort_values(["tailnum", "flights"], ignore_index=True)


def differences(actual: pd.DataFrame, expected: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that only one of two results has, or has more often.

    Returns
    -------
    pandas.DataFrame
        Empty if the results are equal; else the rows, and in ``found in`` the result that has them.
    """
    if actual.equals(expected):
        return pd.DataFrame()
    columns = list(COLUMN_TYPES)
    counted = [
        rows.assign(copy=rows.groupby(columns, dropna=False).cumcount())
        for rows in (actual, expected)
    ]
    merged = counted[0].merge(counted[1], how="outer", indicator="found in")
    found_in = merged["found in"].map({"left_only": "stream", "right_only": "pandas"})
    return merged.assign(**{"found in": found_in})[found_in.notna()]


def _previous_legs(legs: pd.DataFrame) -> pd.DataFrame:
    """Return what is known of each leg's previous leg; nothing if it was diverted."""
    known = legs[["dest", "arrived", "arr_delay"]].where(legs["arrived"].notna())
    known.columns = ["last_airport", "last_arrived", "last_delay"]
    return known.groupby(legs["tailnum"], dropna=False).shift()
