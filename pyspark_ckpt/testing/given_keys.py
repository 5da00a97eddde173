"""Keys as a test gives them, and as they are stored."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any

import numpy as np

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.codec import key_encoder

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

    A stored key does not tell a date from a number, as in a query, where the key columns' types do.
    Here the keys themselves are remembered.

    Parameters
    ----------
    max_parallelism
        Number of key groups. Which one a key is in is not what Spark's hash would say.
    """

    def __init__(self, max_parallelism: int) -> None:
        self._max_parallelism = max_parallelism
        self._known: dict[bytes, Key] = {}
        self._encode = key_encoder()

    @property
    def known(self) -> Mapping[bytes, Key]:
        """The keys by their stored form."""
        return dict(self._known)

    def remember(self, known: Mapping[bytes, Key]) -> None:
        """Take over the keys of another harness."""
        self._known.update(known)

    def given(self, key: Any) -> GivenKey:
        """Return a key from a bare value, or from the tuple of a composite key.

        Raises
        ------
        PlanError
            If a part of it is of a type that no key column has.
        """
        parts = tuple(key) if isinstance(key, tuple) else (key,)
        sent = tuple(_sent(part) for part in parts)
        try:
            encoded = self._encode(sent)
            hash(sent)
        except (TypeError, OverflowError) as exc:
            raise PlanError(
                f"key {key!r} cannot be one ({exc}): give a value of an atomic type, or a tuple "
                "of such values for several key columns"
            ) from exc
        known = self._known.setdefault(encoded, parts)
        return GivenKey(known, sent, encoded, zlib.crc32(encoded) % self._max_parallelism)

    def decode(self, encoded: bytes) -> Key:
        """Return the key that the processor sees, from its stored form."""
        return self._known[encoded]


def _sent(value: Any) -> Any:
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
