"""Another function in place of this library's function in a subtask, for measurements only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from pyspark_ckpt.operator.plan import operator as operator_plan


@contextmanager
def subtasks_of(subtask: Callable[..., Any] | None) -> Iterator[None]:
    """Let queries that are built in this context call `subtask`; ``None`` changes nothing."""
    if subtask is None:
        yield
        return
    with mock.patch.object(operator_plan, "SubtaskFunction", subtask):
        yield
