"""One value of a metric, with its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_ckpt.metrics.declared import METRICS


class Point(NamedTuple):
    """A value; `labels` has one value for each label of the metric, in its order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def point(name: str, value: float, **labels: str) -> Point:
    """Return a value of a declared metric."""
    return Point(name, value, in_order(name, labels))


def in_order(name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of a metric's labels in the order in which they are declared."""
    declared = METRICS[name].labels
    assert set(labels) == set(declared), f"{name} has the labels {declared}, not {tuple(labels)}"
    return tuple(labels[label] for label in declared)
