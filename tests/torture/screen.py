"""What a torture shows: faults by kind, the query, and what happened last."""

from __future__ import annotations

import time
from collections import Counter, deque
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.torture.faults import FAULTS

EVENTS = 12
LINE_EVERY = 10


class Screen:
    """A live screen on a terminal; elsewhere a line for each tenth fault.

    Parameters
    ----------
    seed
        What the run can be repeated with.
    kills
        How many faults it has.
    """

    def __init__(self, seed: int, kills: int) -> None:
        self.console = Console()
        self.counts: Counter[str] = Counter()
        self.state: dict[str, object] = {}
        self._seed = seed
        self._events: deque[str] = deque(maxlen=EVENTS)
        self._progress = Progress(
            TextColumn("faults"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("faults", total=kills)
        self._live = Live(console=self.console, auto_refresh=False, get_renderable=self._shown)
        self._is_live = self.console.is_terminal

    def __enter__(self) -> Screen:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_live:
            self._live.stop()

    def tell(self, event: str) -> None:
        """Show an event."""
        stamped = f"{time.strftime('%H:%M:%S')} {event}"
        self._events.append(stamped)
        if self._is_live:
            self.refresh()
        else:
            self.console.print(stamped, markup=False, highlight=False, soft_wrap=True)

    def count(self, fault: str) -> None:
        """Count a fault."""
        self.counts[fault] += 1
        self._progress.advance(self._task)
        done = self.counts.total()
        if self._is_live:
            self.refresh()
        elif done % LINE_EVERY == 0:
            said = ", ".join(f"{name} {value}" for name, value in self.state.items())
            self.tell(f"{done} faults; {said}")

    def refresh(self) -> None:
        """Draw again."""
        if self._is_live:
            self._live.update(self._shown(), refresh=True)

    def _shown(self) -> Group:
        faults = Table("fault", "times", expand=True)
        for name in FAULTS:
            faults.add_row(name, str(self.counts[name]))
        query = Table("query", "", expand=True)
        for name, value in self.state.items():
            query.add_row(name, str(value))
        both = Table.grid(expand=True)
        both.add_row(faults, query)
        events = Panel("\n".join(self._events), title="last events")
        return Group(f"torture, SEED={self._seed}", self._progress, both, events)
