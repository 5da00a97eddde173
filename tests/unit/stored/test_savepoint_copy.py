"""Work at low priority does not change the priority of its process or of its caller."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from pyspark_ckpt.stored.savepoint_copy import at_low_priority


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="priorities of threads")
def test_only_the_work_gives_way() -> None:
    before = niceness(), os.getpriority(os.PRIO_PROCESS, os.getpid())
    lowered = at_low_priority(niceness)
    assert lowered >= min(19, before[0] + 1) or before[0] >= 10
    assert (niceness(), os.getpriority(os.PRIO_PROCESS, os.getpid())) == before


def test_what_the_work_returns_or_raises_is_the_callers() -> None:
    assert at_low_priority(lambda: "made") == "made"
    with pytest.raises(ZeroDivisionError):
        at_low_priority(lambda: 1 // 0)
    assert not any("pyspark_ckpt-copy" in thread.name for thread in threading.enumerate())
