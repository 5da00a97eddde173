"""Which kind of session a program has; decided here only, and without importing either client."""

from __future__ import annotations

from typing import Any


def is_connect(owner: Any) -> bool:
    """Return whether a session or a DataFrame belongs to Spark Connect, not to a classic session.

    Parameters
    ----------
    owner
        A ``SparkSession`` or a ``DataFrame``.
    """
    return not (hasattr(owner, "_jsparkSession") or hasattr(owner, "_jdf"))
