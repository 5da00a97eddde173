"""Keys as a test gives them, and their stored form."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

import numpy as np

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.values.codec import key_encoder

Key = tuple[Any, ...]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class GivenKey:
    """One key in all its forms."""

    key: Key
    """What the processor sees."""
    sent: Key
    """The form that it has in the shuffle of a query."""
    encoded: bytes
    key_group: int


class GivenKeys:
    """All keys that a harness was given.

    A date and a number can have the same stored key. In a query, the types of the key columns say
    which one it is. A harness has no such types, so it remembers the keys themselves.

    The group of a key differs from its group in a query, which uses Spark's hash. With one key
    column, any value is a whole key, also a tuple.
    """

    def __init__(self, max_parallelism: int, columns: int = 1) -> None:
        self.columns = columns
        self._max_parallelism = max_parallelism
        self._known: dict[bytes, Key] = {}
        self._encode = key_encoder()

    @property
    def known(self) -> Mapping[bytes, Key]:
        """The keys by their stored form."""
        return dict(self._known)

    def remember(self, known: Mapping[bytes, Key]) -> None:
        """Add the keys of another harness."""
        self._known.update(known)

    def given(self, key: Any) -> GivenKey:
        """Return a key from its value, or from the tuple of values of several key columns."""
        if self.columns == 1:
            return self.of_columns((key,))
        if not isinstance(key, tuple) or len(key) != self.columns:
            raise PlanError(
                f"key {key!r} is no tuple of {self.columns} values: give one value for each of the "
                f"harness's {self.columns} key columns"
            )
        return self.of_columns(tuple(key))

    def of_columns(self, parts: Key) -> GivenKey:
        """Return a key from the values of its columns; see :meth:`given`."""
        key = parts[0] if len(parts) == 1 else parts
        sent = tuple(_sent(part) for part in parts)
        try:
            encoded = self._encode(sent)
            hash(sent)
        except (TypeError, OverflowError) as exc:
            raise PlanError(
                f"{key!r} cannot be a key ({exc}): give a value of an atomic type, or with "
                "keyColumns=2 or more a tuple of such values"
            ) from exc
        known = self._known.setdefault(encoded, parts)
        return GivenKey(known, sent, encoded, zlib.crc32(encoded) % self._max_parallelism)

    def decode(self, encoded: bytes) -> Key:
        """Return the key that the processor sees, from its stored form."""
        return self._known[encoded]


def _sent(value: Any) -> Any:
    if isinstance(value, tuple):  # a struct
        return tuple(map(_sent, value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(" ")
        age = value - _EPOCH
        return (age.days * 86_400 + age.seconds) * 1_000_000 + age.microseconds
    return (value - _EPOCH.date()).days if isinstance(value, date) else value
