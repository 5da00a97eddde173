"""Many requests to a storage at once, because each waits for a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 32
"""The number of requests of one process that are under way together."""

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def all_of(
    function: Callable[[Thing], Result], things: Iterable[Thing], *, at_once: bool
) -> list[Result]:
    """Return what a function returns for each thing, in their order.

    Parameters
    ----------
    function
        Called once for each thing; by several threads, if at once.
    things
        What it is called with.
    at_once
        Whether calls are under way together.

    Raises
    ------
    Exception
        What the function raised for the first of the things that it failed for; the things that
        were not begun by then are left out.
    """
    if not at_once:
        return list(map(function, things))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pyspark_ckpt requests") as threads:
        futures = [threads.submit(function, thing) for thing in things]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
