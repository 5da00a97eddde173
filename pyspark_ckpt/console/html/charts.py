"""Charts as rectangles, lines and texts, which a template draws as SVG.

All numbers are pixels of the chart. Texts come from files, and the template escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark_ckpt.console.html.rendering import time_text

WIDTH = 960
HEIGHT = 160
_ROW = 34
_LEFT = 96
_FOOT = 20
_MIN_BAR = 1.5
_MIN_MARK = 4.0
"""The width of a failure in a time chart: it took no time, and shall be seen."""

_CUT_HEIGHT = 5
FAILED = "aborted"
"""The style of what failed."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle. `style` is the name of its colour, `title` its tooltip, `href` its link."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str
    href: str | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, and its colour."""

    points: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text; `anchor` says which of its ends is at the place, as SVG does."""

    x: float
    y: float
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; `legend` has the colours of its parts by name, `meanings` what some parts are."""

    title: str
    width: int
    height: int
    boxes: tuple[Box, ...] = ()
    lines: tuple[Line, ...] = ()
    labels: tuple[Label, ...] = ()
    legend: Mapping[str, str] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """A stacked bar: its parts by name, what it is called, and where its link leads.

    A bar that `may_be_cut` does not make the others small: it is cut where the largest other ends.
    """

    name: str
    parts: Mapping[str, float]
    href: str | None = None
    may_be_cut: bool = False

    @property
    def total(self) -> float:
        """The sum of its parts."""
        return sum(self.parts.values())


def style_of(number: int) -> str:
    """Return the name of the colour of a part of a chart."""
    return f"c{number % 11}"


def stacked_bars(
    title: str, bars: Sequence[Bar], parts: Sequence[str], text: Callable[[float], str]
) -> Chart:
    """Return a chart of stacked bars, one next to the other.

    `bars` are drawn from left to right, and `parts` from bottom to top.
    """
    scaled = [bar.total for bar in bars if not bar.may_be_cut] or [bar.total for bar in bars]
    most = max(scaled, default=0) or 1
    step = (WIDTH - _LEFT) / max(len(bars), 1)
    boxes = []
    for place, bar in enumerate(bars):
        x, width = round(_LEFT + place * step, 1), round(max(min(step, 40) - 1, 1), 1)
        y = float(HEIGHT)
        for number, name in enumerate(parts):
            value = bar.parts.get(name, 0)
            height = min(HEIGHT * value / most, y)
            if height <= 0:
                continue
            y -= height
            shown = f"{bar.name}: {name} {text(value)} of {text(bar.total)}"
            boxes.append(
                Box(x, round(y, 1), width, round(height, 1), style_of(number), shown, bar.href)
            )
        if bar.total > most:
            shown = f"{bar.name}: cut, it has {text(bar.total)}"
            boxes.append(Box(x, 0, width, _CUT_HEIGHT, "cut", shown, bar.href))
    legend = {name: style_of(number) for number, name in enumerate(parts)}
    if any(box.style == "cut" for box in boxes):
        legend["cut: longer than it is drawn"] = "cut"
    labels = (Label(0, 12, text(most)), Label(0, HEIGHT, "0"))
    ends = _ends(bars[0].name, bars[-1].name, HEIGHT) if bars else ()
    return Chart(title, WIDTH, HEIGHT + _FOOT, tuple(boxes), (), labels + ends, legend)


def line_chart(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    text: Callable[[float], str],
) -> Chart:
    """Return a chart with a line per series of points."""
    points = [point for line in series.values() for point in line]
    if not points:
        return Chart(title, WIDTH, HEIGHT)
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    most = max(y for _, y in points) or 1
    width = (last - first) or 1
    lines = []
    for number, (name, line) in enumerate(series.items()):
        shown = " ".join(
            f"{_LEFT + (WIDTH - _LEFT) * (x - first) / width:.1f},"
            f"{4 + HEIGHT - HEIGHT * y / most:.1f}"
            for x, y in line
        )
        lines.append(Line(shown, style_of(number), name))
    labels = (Label(0, 14, text(most)), Label(0, HEIGHT + 4, "0"))
    legend = {name: style_of(number) for number, name in enumerate(series)}
    return Chart(title, WIDTH, HEIGHT + 8, (), tuple(lines), labels, legend)


def _ends(first: str, last: str, y: float) -> tuple[Label, ...]:
    """Return what stands below the left and the right end of a chart."""
    left = Label(_LEFT, y + _FOOT - 4, first)
    return (left,) if first == last else (left, Label(WIDTH, y + _FOOT - 4, last, "end"))


@dataclass(frozen=True, slots=True)
class Span:
    """Something that began and took its time, on a row of a time chart."""

    row: str
    began_ms: int
    duration_ms: int
    style: str
    title: str
    href: str | None = None

    @property
    def is_failure(self) -> bool:
        """Whether it is a failure or an abort."""
        return self.style == FAILED


def time_chart(title: str, rows: Sequence[str], spans: Sequence[Span]) -> Chart:
    """Return a chart of what happened when, with a row per kind; what overlaps is above it.

    `rows` are named from top to bottom.
    """
    if not spans:
        return Chart(title, WIDTH, _ROW)
    first = min(span.began_ms for span in spans)
    last = max(span.began_ms + span.duration_ms for span in spans)
    scale = (WIDTH - _LEFT) / max(last - first, 1)
    boxes = []
    for span in spans:
        least = _MIN_MARK if span.is_failure else _MIN_BAR
        width = round(max(span.duration_ms * scale, least), 1)
        x = min(_LEFT + (span.began_ms - first) * scale, WIDTH - width)
        boxes.append(
            Box(
                round(x, 1), rows.index(span.row) * _ROW + 4, width, _ROW - 10, span.style,
                span.title, span.href,
            )
        )  # fmt: skip
    labels = tuple(Label(0, number * _ROW + 20, name) for number, name in enumerate(rows))
    height = len(rows) * _ROW
    labels += _ends(time_text(first), time_text(last), height)
    return Chart(title, WIDTH, height + _FOOT, tuple(boxes), (), labels)


@dataclass(frozen=True, slots=True)
class Node:
    """A row of a tree of boxes; `parent` is the place of its parent, ``None`` for a root."""

    text: str
    style: str
    title: str
    parent: int | None = None
    href: str | None = None


def tree_chart(title: str, nodes: Sequence[Node]) -> Chart:
    """Return a tree: each node in its own row, to the right of its parent, with a line to it.

    In `nodes`, each node must come after its parent.
    """
    depths: list[int] = []
    boxes, lines = [], []
    for place, node in enumerate(nodes):
        depth = 0 if node.parent is None else depths[node.parent] + 1
        depths.append(depth)
        x, y = 8 + 40 * min(depth, 12), place * _ROW + 4
        boxes.append(
            Box(
                x, y, min(WIDTH - x - 8, 9 * len(node.text) + 24), _ROW - 10, node.style,
                node.title, node.href, node.text,
            )
        )  # fmt: skip
        if node.parent is not None:
            above = boxes[node.parent]
            middle = y + (_ROW - 10) / 2
            points = f"{above.x + 14},{above.y + above.height} {above.x + 14},{middle} {x},{middle}"
            lines.append(Line(points, "edge", node.title))
    return Chart(title, WIDTH, max(len(nodes), 1) * _ROW, tuple(boxes), tuple(lines))
