"""Turns models into HTML. Every value is escaped, because names and keys come from files."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from pyspark_ckpt.html_form import size_text

_MOST_MS = 253_402_300_800_000
_MOST_TEXT = 4000
_NULL = Markup('<i title="no value">null</i>')
UNKNOWN = "-"
"""What pages show where a number is not known."""


def make_environment() -> Environment:
    """Return the environment of the templates, which escapes everything."""
    environment = Environment(
        loader=PackageLoader("pyspark_ckpt.console.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        bytes=bytes_text, ms=milliseconds_text, when=time_text, ago=ago_text, short=short_text,
        count=count_text, cell=cell,
    )  # fmt: skip
    return environment


def bytes_text(value: float | None) -> str:
    """Return a size as people read it."""
    return UNKNOWN if value is None else size_text(value)


def count_text(value: float | None) -> str:
    """Return a number with commas."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def milliseconds_text(value: float | None) -> str:
    """Return a duration as people read it."""
    if value is None:
        return UNKNOWN
    if value < 1000:
        return f"{value:.0f} ms"
    seconds = value / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


def time_text(value: int | None) -> str:
    """Return a time in UTC."""
    if value is None or not 0 < value < _MOST_MS:
        return UNKNOWN
    at = datetime.fromtimestamp(value / 1000, timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


@pass_context
def ago_text(context: Context, value: int | None) -> str:
    """Return how long before the time of the page a time was."""
    if value is None or not 0 < value < _MOST_MS:
        return "never"
    since_ms = max(context["as_of_ms"] - value, 0)
    return f"{milliseconds_text(since_ms)} ago"


def short_text(value: object, most: int = _MOST_TEXT) -> str:
    """Return a text without control characters, and not too long for a page."""
    text = "".join(each if each.isprintable() or each == "\n" else "?" for each in str(value))
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def cell(value: str | None, most: int = _MOST_TEXT) -> str:
    """Return a stored value as a page shows it; a null looks like no text, also not like "null"."""
    return _NULL if value is None else short_text(value, most)


_environment = make_environment()


def render(template: str, **values: Any) -> str:
    """Return a page."""
    return _environment.get_template(template).render(**values)
