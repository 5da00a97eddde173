"""What the driver finds out about a processor before it is sent."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from pyspark.sql.streaming import StatefulProcessor

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.plan.declared import declare_states


class Plain(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield from rows

    def close(self) -> None:
        pass


class OtherNames(Plain):
    def handleExpiredTimer(self, key: Any, timers: Any, info: Any) -> Any:  # type: ignore[override]
        yield from ()


class MoreNames(Plain):
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any, more: int
    ) -> Any:  # type: ignore[override]
        yield from ()


class OtherOrder(Plain):
    def handleExpiredTimer(self, expiredTimerInfo: Any, key: Any, **others: Any) -> Any:
        yield from ()


def renaming(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        return method(self, key, timerValues, expiredTimerInfo)

    return call


class Decorated(Plain):
    handleExpiredTimer = renaming(OtherNames.handleExpiredTimer)  # noqa: N815  # PySpark's name


@pytest.mark.parametrize("processor", [OtherNames(), MoreNames()])
@pytest.mark.parametrize("mode", [TimeMode.PROCESSING_TIME, TimeMode.EVENT_TIME])
def test_a_method_that_fails_for_every_timer_is_refused(
    processor: StatefulProcessor, mode: TimeMode
) -> None:
    says = r"operator 'op': .*Names.handleExpiredTimer\(.*are given by name, so call them key, time"
    with pytest.raises(PlanError, match=says):
        declare_states(processor, "op", mode, has_watermark=True)
    declare_states(processor, "op", TimeMode.NONE, has_watermark=True)  # it is never called


@pytest.mark.parametrize("processor", [Plain(), OtherOrder(), Decorated()])
def test_a_method_that_takes_the_names_is_not(processor: StatefulProcessor) -> None:
    declare_states(processor, "op", TimeMode.EVENT_TIME, has_watermark=True)
