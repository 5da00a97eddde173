"""Which kind of session a program has; decided here only, and without importing either client."""

from __future__ import annotations

from typing import Any

_CONNECT = "pyspark.sql.connect."


def is_connect(owner: Any) -> bool:
    """Return whether a session or a DataFrame belongs to Spark Connect."""
    return any(each.__module__.startswith(_CONNECT) for each in type(owner).__mro__)
