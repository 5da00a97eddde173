"""Events of an auction site in the proportions of Nexmark: persons, auctions, bids as 1 to 3 to 46.

Ids, hot sellers, hot auctions, hot bidders, and people and auctions still active follow the
defaults of the generator in https://github.com/nexmark/nexmark (nexmark-flink); written anew, for
whole epochs at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.runs.case import InputFiles
from benchmarks.runs.input_files import write_files

INPUT = (
    "kind int, id long, name string, city string, state string, seller long, category long, "
    "auction long, bidder long, price long, time_ms long"
)
PERSON, AUCTION, BID = range(3)
EPOCH_MS = 20_000

_PERSONS, _AUCTIONS, _OF = 1, 3, 50
_FIRST_ID = 1_000
_FIRST_CATEGORY, _CATEGORIES = 10, 5
_HOT_OF = 100
"""Of so many ids in a row, one is hot."""
_HOT_SELLERS, _HOT_AUCTIONS, _HOT_BIDDERS = 4, 2, 4
"""All but one in so many take the hot one."""
_ACTIVE_PEOPLE, _PERSON_LEAD = 1_000, 10
_ACTIVE_AUCTIONS, _AUCTION_LEAD = 100, 10
_STATES = np.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = np.array(["Phoenix", "Los Angeles", "Boise", "Portland", "Seattle", "Cheyenne"])
_NAMES = np.array(["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah"])

_ORIGIN_MS = 1_704_067_200_000
_SEED = 42

Numbers = np.ndarray[Any, Any]


def write_events(events: int, directory: Path, epochs: int) -> InputFiles:
    """Write epochs of 20 s, and one with a single bid far ahead, which ends every window.

    Parameters
    ----------
    events
        In each epoch.
    directory, epochs
        Where, and how many.
    """
    written = write_files(directory, (events_of(events, epoch) for epoch in range(epochs)))
    ahead_ms = _ORIGIN_MS + (epochs + 1_000) * EPOCH_MS
    last = pd.DataFrame({"kind": [BID], "time_ms": [ahead_ms], "price": [0]})
    last = last.assign(auction=-1, bidder=-1)
    return InputFiles(written, tail=write_files(directory, [_typed(last)], first=epochs))


def events_of(events: int, epoch: int) -> pd.DataFrame:
    """Return the events of an epoch, in order of time."""
    random = np.random.default_rng((_SEED, events, epoch))
    numbers = np.arange(epoch * events, (epoch + 1) * events)
    group, place = np.divmod(numbers, _OF)
    kind = np.select([place < _PERSONS, place < _PERSONS + _AUCTIONS], [PERSON, AUCTION], BID)
    last_person = group
    last_auction = group * _AUCTIONS + np.clip(place - _PERSONS, -1, _AUCTIONS - 1)
    person, auction, bid = (kind == one for one in (PERSON, AUCTION, BID))
    town = random.integers(0, len(_STATES), events)
    frame = pd.DataFrame(
        {
            "kind": kind,
            "id": np.where(person, last_person, last_auction) + _FIRST_ID,
            "name": _NAMES[random.integers(0, len(_NAMES), events)],
            "city": _CITIES[town],
            "state": _STATES[town],
            "seller": _person(random, last_person, _HOT_SELLERS, 0),
            "category": random.integers(0, _CATEGORIES, events) + _FIRST_CATEGORY,
            "auction": _auction(random, last_auction),
            "bidder": _person(random, last_person, _HOT_BIDDERS, 1),
            "price": (100 * 10 ** (6 * random.random(events))).astype(np.int64),
            "time_ms": _ORIGIN_MS + numbers * EPOCH_MS // events,
        }
    )
    for column, kept in {
        **dict.fromkeys(("name", "city", "state"), person),
        **dict.fromkeys(("seller", "category"), auction),
        **dict.fromkeys(("auction", "bidder", "price"), bid),
        "id": ~bid,
    }.items():
        frame[column] = frame[column].where(kept, None)
    return _typed(frame)


def _person(random: np.random.Generator, last: Numbers, hot: int, offset: int) -> Numbers:
    """Return the ids of people who sell or bid: mostly a hot one, else one of the last."""
    people = last + 1
    active = np.minimum(people, _ACTIVE_PEOPLE)
    chosen = people - active + random.integers(0, active + _PERSON_LEAD)
    is_hot = random.integers(0, hot, len(last)) > 0
    return np.where(is_hot, last // _HOT_OF * _HOT_OF + offset, chosen) + _FIRST_ID


def _auction(random: np.random.Generator, last: Numbers) -> Numbers:
    """Return the ids of auctions that are bid for: often a hot one, else one of the last."""
    first = np.maximum(last - _ACTIVE_AUCTIONS, 0)
    chosen = random.integers(first, last + 1 + _AUCTION_LEAD)
    is_hot = random.integers(0, _HOT_AUCTIONS, len(last)) > 0
    return np.where(is_hot, last // _HOT_OF * _HOT_OF, chosen) + _FIRST_ID


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return all columns of the input, with nulls among whole numbers."""
    columns = {}
    for field in INPUT.split(", "):
        name, kind = field.split()
        column = frame[name] if name in frame else pd.Series([None] * len(frame), dtype=object)
        dtype: Any = {"long": "Int64", "int": "Int32"}.get(kind, object)
        columns[name] = column.astype(dtype)
    return pd.DataFrame(columns)
