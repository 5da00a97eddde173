"""Pickles whole modules, because Python workers cannot import the modules of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pyspark import cloudpickle


@contextmanager
def pickled_by_value(*modules: ModuleType) -> Iterator[None]:
    """Let processors of these modules travel with their code inside the block."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
