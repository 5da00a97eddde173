"""States after ``deleteIfExists``: every use is an error that names the state.

PySpark raises a ``PySparkRuntimeError`` there, whose text begins with what was tried; so do these.
States need not ask on each call whether they were deleted, because their methods are exchanged.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.operator.state.map import MapState

_TRIED = {
    "exists": "checking {kind} state exists",
    "clear": "clearing {kind} state",
    "containsKey": "checking map state contains key",
    "getValue": "getting value",
    "removeKey": "removing key from map state",
    "updateValue": "updating map state value",
}
_READS = ("get", "getMany", "iterator", "keys", "values")


def withdraw(state: object, name: str, where: str) -> None:
    """Have every later use of a state raise ``StateUseError``.

    Parameters
    ----------
    state
        What the handle gave out.
    name
        Its name.
    where
        The operator and subtask, for errors.
    """
    kind = "map" if isinstance(state, MapState) else "value"
    for method in dir(state):
        if not method.startswith("_"):
            other = "getting {kind} state" if method in _READS else "updating {kind} state"
            tried = _TRIED.get(method, other).format(kind=kind)
            vars(state)[method] = partial(_refuse, f"Error {tried}: {where}: state {name!r}")


def _refuse(what: str, *_arguments: Any, **_named: Any) -> NoReturn:
    raise StateUseError(
        f"{what} was deleted with deleteIfExists; do not use it any more, or do not delete it"
    )
