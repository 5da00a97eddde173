"""Leases of drivers that tests make up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class LeaseOf:
    """A lease whose check is a function."""

    check: Callable[[], object]


ALONE = LeaseOf(lambda: None)
"""The lease of a driver that no other one ever takes over from."""
