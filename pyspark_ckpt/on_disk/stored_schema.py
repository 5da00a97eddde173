"""Stored schemas, Spark's JSON form of a StructType, checked before Spark reads them."""

from __future__ import annotations

import json
from typing import Any

from pyspark_ckpt.errors import CorruptFileError

_OF_USER_TYPES = frozenset({"pyClass", "serializedClass", "class"})


def checked_schema(text: str) -> dict[str, Any]:
    """Return the JSON object of a stored schema.

    Raises
    ------
    CorruptFileError
        If it is none, or has a user-defined type: PySpark would import, and even unpickle, what
        its JSON names.
    """
    try:
        fields = json.loads(text)
        has_user_type = _names_user_type(fields)
    except (ValueError, RecursionError) as exc:
        raise not_a_schema(text) from exc
    if has_user_type:
        raise CorruptFileError(
            f"a stored schema has a user-defined type ({text[:200]}): this library never writes "
            "one; do not use the file that it was read from"
        )
    if not isinstance(fields, dict):
        raise not_a_schema(text)
    return fields


def not_a_schema(text: str) -> CorruptFileError:
    """Return the error of a text that is no schema."""
    return CorruptFileError(
        f"a stored schema is none ({text[:200]!r}); restore from another checkpoint or savepoint"
    )


def _names_user_type(part: Any) -> bool:
    if isinstance(part, list):
        return any(map(_names_user_type, part))
    if not isinstance(part, dict):
        return False
    if part.get("type") == "udt" or _OF_USER_TYPES & part.keys():
        return True
    return any(map(_names_user_type, part.values()))
