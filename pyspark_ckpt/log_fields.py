"""Loggers whose records have ids as fields: query, checkpoint, epoch, operator and subtask.

A thread sets the fields for what it does. Each record that the library logs while they are set has
them as attributes: ``ckpt_query``, ``ckpt_checkpoint``, ``ckpt_epoch``, ``ckpt_operator`` and
``ckpt_subtask``, which are ``None`` where there is no such id.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

FIELDS = ("query", "checkpoint", "epoch", "operator", "subtask")
"""The fields of every record, without the prefix ``ckpt_`` of their attributes."""

_KEPT = "_ckpt_log_fields"
_fields: ContextVar[Mapping[str, Any]] = ContextVar("pyspark_ckpt_log_fields")


if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # not generic at run time in Python 3.10


class _Logger(_Adapter):
    """Adds the fields of the running thread to each record."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        fields = _fields.get({})
        found = {f"ckpt_{name}": fields.get(name) for name in FIELDS}
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **found}
        return msg, kwargs


def library_logger(name: str) -> _Logger:
    """Return the logger of a module of this library."""
    return _Logger(logging.getLogger(name), {})


@contextmanager
def log_fields(**fields: str | int | None) -> Iterator[None]:
    """Give records of this thread these fields; the other fields stay as they are."""
    before = _fields.get({})
    _fields.set({**before, **fields})
    try:
        yield
    finally:
        _fields.set(before)  # no token, because a generator may end in another context


def keep_fields(error: BaseException) -> None:
    """Keep the fields of this thread in an error that is logged elsewhere."""
    setattr(error, _KEPT, _fields.get({}))


def fields_of(error: BaseException) -> Mapping[str, Any]:
    """Return the fields that were kept in an error, if any, for :func:`log_fields`."""
    kept: Mapping[str, Any] = getattr(error, _KEPT, {})
    return kept


class JsonLogFormatter(logging.Formatter):
    """Formats each record as one line of JSON, with the ids that this library adds.

    The fields are time (in UTC), level, logger, message, thread, and, where they are known, query,
    checkpoint, epoch, operator, subtask and error (the traceback). It formats records of other
    libraries too.

    Examples
    --------
    >>> import logging
    >>> handler = logging.StreamHandler()
    >>> handler.setFormatter(ckpt.JsonLogFormatter())
    >>> logging.getLogger("pyspark_ckpt").addHandler(handler)
    >>> logging.getLogger("pyspark_ckpt").removeHandler(handler)
    """

    def __init__(self) -> None:
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record.

        Parameters
        ----------
        record : LogRecord
            The record.

        Returns
        -------
        str
            JSON without a line break.

        Examples
        --------
        >>> import logging
        >>> record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", "created": 0})
        >>> ckpt.JsonLogFormatter().format(record)[:58]
        '{"time": "1970-01-01T00:00:00.000+00:00", "level": "INFO",'
        """
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        found = {name: getattr(record, f"ckpt_{name}", None) for name in FIELDS}
        line.update({name: value for name, value in found.items() if value is not None})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
