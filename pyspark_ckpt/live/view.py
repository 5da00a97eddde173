"""A view of a running query that is drawn again until the cell is interrupted or the query ends."""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.clock import utc_text
from pyspark_ckpt.history.log import HistoryEntry
from pyspark_ckpt.html_form import html_facts, html_table, size_text
from pyspark_ckpt.text_table import text_pairs, text_table

SHOWN_EPOCHS = 10
SHOWN_CHECKPOINTS = 5

_EPOCHS = ("epoch", "began", "rows", "ms", "rows/s", "watermark")
_CHECKPOINTS = ("kind", "id", "status", "epoch", "triggered", "ms", "size", "reason")

Facts = dict[str, object]
Rows = list[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a query showed at one moment."""

    facts: Facts
    epochs: Rows
    checkpoints: Rows

    def html(self, title: str) -> str:
        """Return it as HTML."""
        return (
            html_facts(title, self.facts)
            + html_table("Epochs", _EPOCHS, self.epochs)
            + html_table("Checkpoints and savepoints", _CHECKPOINTS, self.checkpoints)
        )

    def text(self, title: str) -> str:
        """Return it as text."""
        return "\n\n".join(
            (
                title,
                text_pairs(self.facts),
                text_table(_EPOCHS, _as_text(self.epochs)),
                text_table(_CHECKPOINTS, _as_text(self.checkpoints)),
            )
        )


class QueryView:
    """Reads what a view of a query shows.

    `progress_since` returns Spark's reports of the epochs after an epoch, oldest first.
    """

    def __init__(
        self,
        facts: Callable[[], Facts],
        progress_since: Callable[[int | None], Sequence[dict[str, Any]]],
        entries: Callable[[], list[HistoryEntry]],
    ) -> None:
        self._facts = facts
        self._progress_since = progress_since
        self._entries = entries
        self._epochs: deque[dict[str, Any]] = deque(maxlen=SHOWN_EPOCHS)

    def read(self) -> Reading:
        """Return what the query shows now."""
        return Reading(self._facts(), self._epoch_rows(), self._checkpoint_rows())

    def _epoch_rows(self) -> Rows:
        self._epochs.extend(
            self._progress_since(self._epochs[-1]["batchId"] if self._epochs else None)
        )
        return [_epoch_row(report) for report in self._epochs]

    def _checkpoint_rows(self) -> Rows:
        return [
            (
                entry.kind,
                entry.checkpoint_id,
                entry.status,
                entry.epoch,
                None if entry.triggered_at_ms is None else utc_text(entry.triggered_at_ms),
                entry.duration_ms,
                None if entry.size_bytes is None else size_text(entry.size_bytes),
                entry.reason,
            )
            for entry in self._entries()[-SHOWN_CHECKPOINTS:]
        ]


def _epoch_row(report: dict[str, Any]) -> tuple[object, ...]:
    rows = sum(max(each.get("numInputRows") or 0, 0) for each in report.get("sources", []))
    duration_ms = report["durationMs"].get("triggerExecution", 0)
    speed = round(1000 * rows / duration_ms) if duration_ms else None
    watermark = report.get("eventTime", {}).get("watermark")
    return report["batchId"], report["timestamp"], rows, duration_ms, speed, watermark


def _as_text(rows: Rows) -> list[list[str]]:
    return [["" if cell is None else str(cell) for cell in row] for row in rows]


def watch(view: QueryView, title: str, is_active: Callable[[], bool], refresh_s: float) -> None:
    """Draw a view again and again; return when the query has ended or the user interrupts.

    Another thread reads. An interrupt during a call of the JVM would break the connection of the
    thread that calls.
    """
    readings: queue.SimpleQueue[tuple[Reading, bool] | Exception] = queue.SimpleQueue()
    is_over = threading.Event()

    def read() -> None:
        try:
            runs = True
            while runs and not is_over.is_set():
                runs = is_active()
                readings.put((view.read(), runs))
                is_over.wait(refresh_s if runs else 0)
        except Exception as exc:
            readings.put(exc)

    draw, last = _drawing(), None
    with _interrupts_only_the_view():
        reader = threading.Thread(target=read, name="pyspark_ckpt view", daemon=True)
        reader.start()
        try:
            runs = True
            while runs:
                found = readings.get()
                if isinstance(found, Exception):
                    raise found
                last, runs = found
                draw(last, f"{title}: {'running' if runs else 'ended'}")
        except KeyboardInterrupt:
            if last is not None:
                draw(last, f"{title}: no longer watched")
        finally:
            is_over.set()


def _drawing() -> Callable[[Reading, str], None]:
    """Return a function that draws: in place in a notebook, else below each other."""
    if "IPython" not in sys.modules:
        return lambda reading, title: _write(reading.text(title))
    from IPython import get_ipython
    from IPython.display import HTML, display

    if not hasattr(get_ipython(), "kernel"):  # IPython in a terminal, or only imported
        return lambda reading, title: _write(reading.text(title))
    handle = display(HTML(""), display_id=True)
    return lambda reading, title: handle.update(HTML(reading.html(title)))


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


@contextmanager
def _interrupts_only_the_view() -> Iterator[None]:
    """Let an interrupt end the view only: PySpark's own handler cancels all jobs of the session."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
