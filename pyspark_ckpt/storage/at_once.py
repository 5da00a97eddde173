"""Many requests to a storage at once, because each request waits for a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 32
"""The number of requests that one process has under way at the same time."""

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def all_of(
    function: Callable[[Thing], Result], things: Iterable[Thing], *, at_once: bool
) -> list[Result]:
    """Return the results of a function for some things, in the order of the things.

    With `at_once`, several threads call `function` at the same time. The error that is raised is
    that of the first thing, in their order, for which `function` failed. Calls that have not begun
    by then are left out.
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
