"""Charts: a start-up does not hide the other epochs, and a failure can be seen."""

from __future__ import annotations

from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.timeline import Timeline
from pyspark_ckpt.console.html.charts import (
    FAILED,
    HEIGHT,
    WIDTH,
    Bar,
    Span,
    line_chart,
    stacked_bars,
    time_chart,
)
from pyspark_ckpt.console.html.pages import sizes_chart
from pyspark_ckpt.console.html.rendering import bytes_text, milliseconds_text
from pyspark_ckpt.history.run_log import CheckpointRecord
from pyspark_ckpt.storage.open import Storage


def test_a_bar_that_may_be_cut_does_not_make_the_others_small() -> None:
    bars = [
        Bar("epoch 0, start-up", {"plan": 20_000, "sink": 5000}, may_be_cut=True),
        Bar("epoch 1", {"plan": 500, "sink": 500}),
    ]
    chart = stacked_bars("Time", bars, ("plan", "sink"), milliseconds_text)
    assert chart.labels[0].text == "1.0 s"
    assert max(box.y + box.height for box in chart.boxes) <= HEIGHT
    assert min(box.y for box in chart.boxes) == 0
    (cut,) = [box for box in chart.boxes if box.style == "cut"]
    assert cut.title == "epoch 0, start-up: cut, it has 25.0 s"
    assert "cut" in chart.legend.values()
    assert [box.height for box in chart.boxes if box.title.startswith("epoch 1:")] == [80, 80]


def test_start_ups_alone_are_drawn_whole() -> None:
    bars = [Bar("epoch 0", {"plan": 20_000}, may_be_cut=True)]
    chart = stacked_bars("Time", bars, ("plan",), milliseconds_text)
    assert [box.style for box in chart.boxes] == ["c0"]
    assert "cut" not in chart.legend.values()


def test_a_failure_is_wide_enough_to_see_and_inside_the_chart() -> None:
    day_ms = 86_400_000
    spans = [
        Span("epochs", 0, 10, "c0", "an epoch"),
        Span("failures", day_ms, 0, FAILED, "it failed"),
    ]
    chart = time_chart("What happened", ("epochs", "failures"), spans)
    epoch, failure = chart.boxes
    assert epoch.width < 4 <= failure.width
    assert failure.x + failure.width <= WIDTH


def test_numbers_have_the_units_of_the_tables() -> None:
    chart = line_chart("Size", {"op / list": [(0, 10), (5, 51_000)]}, bytes_text)
    assert chart.labels[0].text == "49.8 KiB"
    assert milliseconds_text(24_234) == "24.2 s"
    assert milliseconds_text(9 * 86_400_000) == "9.0 days"


def test_a_checkpoint_of_which_nothing_is_known_to_be_new_is_drawn_so(storage: Storage) -> None:
    """The first one of a run has none before it to be compared with."""
    records = [
        CheckpointRecord(
            checkpoint_id=number, epoch=number, triggered_at_ms=0, duration_ms=1, size_bytes=100,
            new_bytes=new_bytes,
        )
        for number, new_bytes in ((1, None), (2, 30))
    ]  # fmt: skip
    timeline = Timeline(
        epochs=(), other_epochs=0, other_ms=0, recorded=tuple(records), retained=(),
        has_older=False, events=(), runs=(), failures=(),
    )  # fmt: skip
    chart = sizes_chart(timeline, QueryPlace("key", storage, None))
    assert [box.title for box in chart.boxes] == [
        "chk-1: not known to be new 100 B of 100 B",
        "chk-2: new 30 B of 100 B",
        "chk-2: in the checkpoint before 70 B of 100 B",
    ]
