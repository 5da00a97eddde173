"""The modes: which calls, and which view of the rows, the class of a processor asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.operator.modes.calls import Calls, CallsForAllKeys, KeyCalls
from pyspark_ckpt.operator.modes.processors import ArrowProcessor, BatchProcessor
from pyspark_ckpt.operator.modes.views import ArrowView, FrameLimits, PandasView, RowView, View
from pyspark_ckpt.operator.rows.input import InputColumns
from pyspark_ckpt.operator.rows.output import OutputRows


@dataclass(frozen=True, slots=True)
class Mode:
    """A way in which a processor gets its rows and yields its output."""

    name: str
    """Its name in captures."""
    adds: str
    """The method of a keyed stream that adds an operator in this mode."""
    processor: type
    """The class of its processors."""
    calls: type[Calls]
    view: type[View]

    @property
    def has_key_calls(self) -> bool:
        """Whether each key has a call."""
        return self.calls is KeyCalls

    @property
    def has_frames(self) -> bool:
        """Whether rows are pandas frames."""
        return self.view is PandasView

    @property
    def method(self) -> str:
        """The method of the processor that gets the rows."""
        view: Any = self.view
        return KeyCalls.method if self.has_key_calls else str(view.method)

    @property
    def late_method(self) -> str:
        """The method of the processor that gets late rows, if it has it."""
        view: Any = self.view
        return KeyCalls.late_method if self.has_key_calls else str(view.late_method)

    def of_operator(
        self,
        columns: InputColumns,
        output_rows: OutputRows,
        limits: FrameLimits | None = None,
    ) -> Calls:
        """Return the mode of one operator; `limits` are those of the frames of a key."""
        view: Any = PandasView(limits) if self.has_frames else self.view()
        return self.calls(view, columns, output_rows)


ROWS = Mode("rows", "transformWithState", StatefulProcessor, KeyCalls, RowView)
PANDAS = Mode("pandas", "transformWithStateInPandas", StatefulProcessor, KeyCalls, PandasView)
BATCHES = Mode(
    "batches", "transformWithStateInBatches", BatchProcessor, CallsForAllKeys, PandasView
)
ARROW = Mode("arrow", "transformWithStateInArrow", ArrowProcessor, CallsForAllKeys, ArrowView)

MODES: Mapping[str, Mode] = {mode.name: mode for mode in (ROWS, PANDAS, BATCHES, ARROW)}
"""All modes by their names in captures."""


def modes_of_class(processor: object) -> list[Mode]:
    """Return the modes that the class of a processor asks for; a plain one may have several."""
    plain = [mode for mode in MODES.values() if mode.processor is StatefulProcessor]
    others = [mode for mode in MODES.values() if mode not in plain]
    return [mode for mode in others if isinstance(processor, mode.processor)] or plain


def mode_of_calls(calls: Calls) -> Mode:
    """Return the mode that an operator's calls are of."""
    kinds = type(calls), type(calls.view)
    return next(mode for mode in MODES.values() if (mode.calls, mode.view) == kinds)
