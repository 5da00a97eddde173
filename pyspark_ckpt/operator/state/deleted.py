"""States after ``deleteIfExists``: every use is an error that names the state.

PySpark raises a ``PySparkRuntimeError`` whose text begins with the action; so does this library.
The methods of a deleted state are replaced, so other states do not check for deletion on each call.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.operator.state.kinds import StateKind

_TRIED = {
    "exists": "checking {kind} state exists",
    "clear": "clearing {kind} state",
    "containsKey": "checking map state contains key",
    "getValue": "getting value",
    "removeKey": "removing key from map state",
    "updateValue": "updating map state value",
}
_READS = ("get", "getMany", "iterator", "keys", "values")


def withdraw(state: object, kind: StateKind, name: str, where: str) -> None:
    """Make every later use of a state raise ``StateUseError``."""
    word = "map" if kind.has_map_key else "value"
    for method in dir(state):
        if not method.startswith("_"):
            other = "getting {kind} state" if method in _READS else "updating {kind} state"
            tried = _TRIED.get(method, other).format(kind=word)
            vars(state)[method] = partial(_refuse, f"Error {tried}: {where}: state {name!r}")


def _refuse(what: str, *_arguments: Any, **_named: Any) -> NoReturn:
    raise StateUseError(
        f"{what} was deleted with deleteIfExists; do not use it any more, or do not delete it"
    )
