"""What a query's public methods raise when the Spark session of the query has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

from pyspark.errors import StreamingQueryException

from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.query.stopping.failure import not_without_session


class OfSession(Protocol):
    """An object of a query, which knows what became of the session."""

    @property
    def id(self) -> str:
        """The query's id."""

    def _why_session_ended(self) -> str | None:
        """Return why the session is gone, ``None`` while it is there."""


Kind = TypeVar("Kind", bound=type)


def says_that_session_ended(kind: Kind) -> Kind:
    """Let the public methods and properties of a query's class raise a ``SessionEndedError``.

    Without a session Spark's own calls fail in many ways, some without a text: an assertion of
    PySpark, an error of Py4J, a closed channel. The class decorator changes all of them, so that
    no method is forgotten.
    """
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name != "_repr_html_":
            continue
        if isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(_saying(name, member.fget), doc=member.__doc__))
        elif callable(member):
            setattr(kind, name, _saying(f"{name}()", member))
    return kind


def _saying(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def saying(self: OfSession, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except (CkptError, StreamingQueryException):
            raise  # they have a text
        except Exception as exc:
            why = self._why_session_ended()
            if why is None:
                raise
            raise not_without_session(self.id, name, why) from exc

    return saying
