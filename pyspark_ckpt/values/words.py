"""Values and texts as errors show them."""

from __future__ import annotations

MAX_VALUE_CHARACTERS = 300
"""What is shown of a key or a value."""

MAX_TEXT_CHARACTERS = 2_000
"""What is shown of the message of an error."""


def shortened(text: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
    """Return a text, or its beginning and how much was left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text) - limit} more characters)"


def shown(value: object) -> str:
    """Return a key or value as an error shows it."""
    return shortened(repr(value), MAX_VALUE_CHARACTERS)
