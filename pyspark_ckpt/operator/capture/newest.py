"""Which of several captures of an epoch count: those of one run, the newest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pyspark_ckpt.operator.capture.capture_file import CapturedEpoch

Place = TypeVar("Place")


def newest_captures(captures: Mapping[Place, CapturedEpoch]) -> list[Place]:
    """Return where the captures are that count.

    An epoch that ran again, after a crash or a rollback, may have had its rows in other subtasks
    than before. So what an earlier run left of it does not count, also not for subtasks of which
    the newest run has no capture. The newest run that ran a committed epoch is the one that
    committed it. Of a subtask the newest attempt of that run counts.

    `captures` must have the captures of all operators.
    """
    runs: dict[int, tuple[int, int, str]] = {}
    for each in captures.values():
        runs[each.epoch] = max(_run(each), runs.get(each.epoch, _run(each)))
    newest: dict[tuple[str, int, int], Place] = {}
    for place, each in captures.items():
        if _run(each) != runs[each.epoch]:
            continue
        subtask = each.uid, each.subtask, each.epoch
        known = newest.setdefault(subtask, place)
        if captures[known].written_at_ms < each.written_at_ms:
            newest[subtask] = place
    return list(newest.values())


def _run(epoch: CapturedEpoch) -> tuple[int, int, str]:
    return epoch.timeline, epoch.run_started_ms, epoch.run
