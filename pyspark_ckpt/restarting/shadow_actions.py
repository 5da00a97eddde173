"""What requests of other processes can ask of the shadows of a query in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.formats.requests import Action
from pyspark_ckpt.history.records import Savepoint


class PromoteTo(Protocol):
    """Lets the candidate of a shadow take over."""

    def __call__(self, directory: str, /, *, accept_differences: bool) -> Savepoint:
        """Return the savepoint of the original."""


@dataclass(frozen=True, slots=True)
class ShadowActions:
    """One shadow of a query: what discards it, and what promotes its candidate."""

    discard: Callable[[], None]
    promote: PromoteTo


_shadows: dict[str, dict[str, ShadowActions]] = {}
_guard = threading.Lock()
"""Guards `_shadows`: by the URL of a checkpoints directory, and of the directory of the shadow."""

SHADOW_ACTIONS = frozenset({Action.PROMOTE, Action.PROMOTE_ANYWAY, Action.DISCARD})


def note_shadow(checkpoints: str, directory: str, actions: ShadowActions) -> None:
    """Let requests find a shadow."""
    with _guard:
        _shadows.setdefault(checkpoints, {})[directory] = actions


def forget_shadow(directory: str) -> None:
    """Let requests no longer find a shadow, because it was discarded."""
    with _guard:
        for url in [*_shadows]:
            _shadows[url].pop(directory, None)
            if not _shadows[url]:
                del _shadows[url]


def act_on_shadow(checkpoints: str, action: Action, directory: str | None) -> Savepoint | None:
    """Carry out a request.

    A promotion returns its savepoint, whose parent is `directory`. ConfigurationError is raised if
    the query has no shadow, or several shadows of which one is to be promoted.
    """
    with _guard:
        found = [*_shadows.get(checkpoints, {}).values()]
    if not found:
        raise ConfigurationError(
            f"the query of {checkpoints} has no shadow: begin one with pyspark_ckpt.shadow"
        )
    if action is Action.DISCARD:
        for shadow in found:
            shadow.discard()
        return None
    if len(found) > 1:
        raise ConfigurationError(
            f"the query of {checkpoints} has {len(found)} shadows: promote one in its driver, with "
            "shadow.promote()"
        )
    assert directory is not None  # the handler has checked it
    return found[0].promote(directory, accept_differences=action is Action.PROMOTE_ANYWAY)
