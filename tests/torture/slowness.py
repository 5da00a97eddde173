"""A slow disk: while the file ``slow`` lies among the marks, each file below the location waits.

An audit hook of Python sees the files that the library opens, names and deletes, in the driver and
in the workers, so the code that runs is the real one.
"""

from __future__ import annotations

import os
import sys
import time

MARKS = "CKPT_TEST_MARKS"
DELAY_S = 0.15
_WATCHED = frozenset({"open", "os.link", "os.rename", "os.remove", "os.listdir"})
_OURS = ("/taskowned/", "/shared/", "/chk-", "/pyspark_ckpt/")
_slow = os.path.join(os.environ.get(MARKS, "/nonexistent"), "slow")  # noqa: PTH118


def _wait(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _WATCHED or not isinstance(arguments[0], str):
        return
    path = arguments[0]
    if any(part in path for part in _OURS) and "site-packages" not in path:
        try:
            os.stat(_slow)  # noqa: PTH116  it is an event of no hook
        except OSError:
            return
        time.sleep(DELAY_S)


if MARKS in os.environ:
    sys.addaudithook(_wait)
