"""Broadcast state is the same in all subtasks: no mode lets a handler of keys change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Row

import pyspark_ckpt as ckpt
from pyspark_ckpt.errors import StateUseError
from pyspark_ckpt.operator.modes.mode import MODES
from pyspark_ckpt.operator.rows.output import OutputRows
from pyspark_ckpt.operator.rows.sides import EpochInput
from pyspark_ckpt.operator.run.processing import EpochProcessing
from tests.unit.operator.run.logged_processor import COLUMNS, OUTPUT, frame_of
from tests.unit.operator.subtask_epochs import NUMBER, TEXT, SubtaskEpochs

CHANGES: dict[str, Callable[[Any], None]] = {
    "updateValue": lambda rules: rules.updateValue(("x",), (2,)),
    "removeKey": lambda rules: rules.removeKey(("x",)),
    "clear": lambda rules: rules.clear(),
}


class Changes(ckpt.ArrowProcessor):
    """Changes its broadcast state in one of its handlers, which are those of every mode."""

    def __init__(self, step: str, change: Callable[[Any], None]) -> None:
        self.step, self.change = step, change
        self.calls: list[str] = []

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rules = handle.getBroadcastState("rules", TEXT, NUMBER)

    def called(self, step: str) -> None:
        self.calls.append(step)
        if step == self.step:
            self.change(self.rules)

    def handleBroadcastRows(self, rows: Any, timerValues: Any) -> None:
        self.called("handleBroadcastRows")
        self.rules.updateValue(("x",), (1,))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.called("handleInitialState")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.handle.registerTimer(40)
        self.called("handleInput")
        return ()

    def handleInputBatch(self, keys: Any, rows: Any, timerValues: Any) -> None:
        self.handle.registerTimers(keys, [40] * len(keys))
        self.called("handleInput")

    def handleInputArrow(self, keys: Any, rows: Any, timerValues: Any) -> None:
        self.handleInputBatch(keys, rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        self.called("handleTimer")
        return ()

    def handleExpiredTimers(self, keys: Any, timers: Any, timerValues: Any) -> None:
        # Due ones are changed one by one, as of the current key, which must not be forgotten.
        self.handle.registerTimers(keys, [40] * len(keys))
        self.called("handleTimer")

    def close(self) -> None:
        self.calls.append("close")


def run(epochs: SubtaskEpochs, mode: Any, processor: Changes) -> dict[Any, Any]:
    """Run an epoch with a part of each kind; return the broadcast state afterwards."""
    epochs.set_time(1000)
    handle = epochs.begin()
    epochs.leave_key()
    calls = mode.of_operator(COLUMNS, OutputRows(OUTPUT, "u"))
    processing = EpochProcessing(
        processor, epochs.table, handle, epochs.clock, calls, COLUMNS.decode_key,
        "operator 'u'", initial_mode=calls.of_initial_state(COLUMNS),
    )  # fmt: skip
    rows = EpochInput(
        [[frame_of([("a", 1)])]], initial=[frame_of([("b", 2)])], broadcast=iter([Row(s="x")])
    )
    try:
        list(processing.run(lambda: rows, epochs.number))
        return {key[0]: value[0] for key, value in processor.rules.iterator()}
    finally:
        epochs.drop()


@pytest.mark.parametrize("step", ["handleInitialState", "handleInput", "handleTimer"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_handler_of_keys_does_not_change_it(
    subtask_epochs: SubtaskEpochs, mode: Any, step: str, change: str
) -> None:
    processor = Changes(step, CHANGES[change])
    with pytest.raises(StateUseError, match=rf"\({change}\) while keys were handled"):
        run(subtask_epochs, mode, processor)
    assert processor.calls[-1] == step


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_broadcast_rows_change_it(subtask_epochs: SubtaskEpochs, mode: Any) -> None:
    processor = Changes("handleBroadcastRows", lambda rules: rules.updateValue(("y",), (2,)))
    assert run(subtask_epochs, mode, processor) == {"x": 1, "y": 2}
    steps = ["handleInitialState", "handleBroadcastRows", "handleInput", "handleTimer", "close"]
    assert processor.calls == steps


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_keys_that_were_handled_are_left_again(subtask_epochs: SubtaskEpochs, mode: Any) -> None:
    """``snapshotState`` and ``close`` are outside keys."""
    processor = Changes("none", CHANGES["clear"])
    run(subtask_epochs, mode, processor)
    assert subtask_epochs.table.current.is_outside
