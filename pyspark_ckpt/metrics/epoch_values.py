"""Values of the metrics of epochs, from Spark's reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark_ckpt.clock import ms_of_text
from pyspark_ckpt.metrics.point import Point, point


class EpochValues:
    """What the epochs of one run of a query add up to, and the newest of them.

    `operators` has the uids by the places of the operators among Spark's stateful operators.
    """

    def __init__(self, operators: Mapping[int, str]) -> None:
        self._operators = operators
        self.epoch: int | None = None
        self._epochs = 0
        self._rows = 0
        self._late: dict[str, int] = {}
        self._newest: Mapping[str, Any] = {}

    def add(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Count epochs that Spark has reported; epochs that were counted before are left out."""
        for report in reports:
            epoch = report["batchId"]
            if self.epoch is not None and epoch <= self.epoch:
                continue
            self.epoch = epoch
            self._epochs += 1
            self._rows += sum(
                max(source.get("numInputRows") or 0, 0) for source in report.get("sources", [])
            )
            self._add_late(report.get("stateOperators", []))
            self._newest = report

    def _add_late(self, stateful: Sequence[Mapping[str, Any]]) -> None:
        for number, uid in self._operators.items():
            if number < len(stateful):
                late = stateful[number].get("numRowsDroppedByWatermark") or 0
                self._late[uid] = self._late.get(uid, 0) + late

    def points(self) -> Iterator[Point]:
        """Yield the values."""
        yield point("epochs", self._epochs)
        yield point("input_rows", self._rows)
        for uid, late in self._late.items():
            yield point("late_rows", late, operator=uid)
        if self.epoch is None:
            return
        yield point("epoch", self.epoch)
        durations = dict(self._newest["durationMs"])
        yield point("epoch_duration", durations.pop("triggerExecution", 0) / 1000)
        for phase, duration_ms in durations.items():
            yield point("epoch_phase_duration", duration_ms / 1000, phase=phase)
        watermark = self._newest.get("eventTime", {}).get("watermark")
        if watermark is not None and (watermark_ms := ms_of_text(watermark)) > 0:
            lag_ms = ms_of_text(self._newest["timestamp"]) - watermark_ms
            yield point("watermark_lag", lag_ms / 1000)
