"""The charts of the page of a query."""

from __future__ import annotations

from dataclasses import replace

from pyspark_ckpt.console.data.places import QueryPlace
from pyspark_ckpt.console.data.timeline import PHASE_MEANINGS, PHASES, UNDIVIDED, Timeline
from pyspark_ckpt.console.html.charts import FAILED, Bar, Chart, Span, stacked_bars, time_chart
from pyspark_ckpt.console.html.rendering import bytes_text, count_text, milliseconds_text
from pyspark_ckpt.formats.modes import EntryKind, EntryStatus

EPOCHS_DRAWN = 120
_CHECKPOINT_MEANINGS = {
    "handles": "the driver reads the handles: each lists the files that hold a subtask's state",
    "sources": "the driver reads Spark's offsets and the logs of the sources",
    "verification": "the driver checks that all files are there",
    "publish": "the driver writes _metadata, which makes the checkpoint complete",
    "new": "files that the checkpoint before does not refer to",
    "not known to be new": "the first checkpoint of a run",
}
_ROWS = ("epochs", "checkpoints", "savepoints", "aborted", "failures")


def epochs_chart(timeline: Timeline) -> Chart:
    """Return the time of epochs by phase."""
    bars = [
        Bar(
            f"epoch {row.record.epoch}{', start-up' if row.is_first else ''}",
            row.phases_ms,
            f"#epoch-{row.record.epoch}",
            may_be_cut=row.is_first,
        )
        for row in timeline.epochs[-EPOCHS_DRAWN:]
    ]
    chart = stacked_bars("Time of epochs by phase", bars, phases_shown(timeline), milliseconds_text)
    return replace(chart, meanings=PHASE_MEANINGS)


def phases_shown(timeline: Timeline) -> tuple[str, ...]:
    """Return the phases, without what stands for operators' phases if all of these are known."""
    is_known = all(row.has_operators for row in timeline.epochs)
    return tuple(name for name in PHASES if name != UNDIVIDED or not is_known)


def durations_chart(timeline: Timeline, place: QueryPlace) -> Chart:
    """Return the time of checkpoints by phase."""
    recorded = timeline.recorded[-EPOCHS_DRAWN:]
    names = list(dict.fromkeys(name for each in recorded for name in each.phases_ms))
    bars = []
    for each in recorded:
        rest = max(each.duration_ms - sum(each.phases_ms.values()), 0)
        bars.append(
            Bar(
                f"chk-{each.checkpoint_id}",
                {**each.phases_ms, "publish": rest},
                _checkpoint_href(timeline, place, each.checkpoint_id),
            )
        )
    title = "Time of checkpoints by phase"
    chart = stacked_bars(title, bars, [*names, "publish"], milliseconds_text)
    return replace(chart, meanings=_CHECKPOINT_MEANINGS)


def sizes_chart(timeline: Timeline, place: QueryPlace) -> Chart:
    """Return the sizes of checkpoints."""
    bars = []
    for each in timeline.recorded[-EPOCHS_DRAWN:]:
        if each.new_bytes is None:  # the first of a run: what the one before had is not known
            parts = {"not known to be new": each.size_bytes}
        else:
            old = max(each.size_bytes - each.new_bytes, 0)
            parts = {"new": each.new_bytes, "in the checkpoint before": old}
        href = _checkpoint_href(timeline, place, each.checkpoint_id)
        bars.append(Bar(f"chk-{each.checkpoint_id}", parts, href))
    title = "Size of checkpoints: full and incremental"
    names = ("new", "in the checkpoint before", "not known to be new")
    chart = stacked_bars(title, bars, names, bytes_text)
    return replace(chart, meanings=_CHECKPOINT_MEANINGS)


def _checkpoint_href(timeline: Timeline, place: QueryPlace, number: int) -> str | None:
    """Return the link of a checkpoint that is still retained."""
    retained = {row.number for row in timeline.retained}
    return f"/q/{place.key}/chk/{number}/" if number in retained else None


def events_chart(timeline: Timeline, place: QueryPlace) -> Chart:
    """Return what happened when, with failures."""
    epochs = timeline.epochs[-EPOCHS_DRAWN:]
    spans = [
        Span(
            "epochs", row.record.began_at_ms, row.record.duration_ms, "c0",
            f"epoch {row.record.epoch}: {milliseconds_text(row.record.duration_ms)}, "
            f"{count_text(row.record.rows)} rows",
            f"#epoch-{row.record.epoch}",
        )
        for row in epochs
    ]  # fmt: skip
    first_ms = min((span.began_ms for span in spans), default=0)
    spans += [
        Span(
            "checkpoints", each.triggered_at_ms, each.duration_ms, "c2",
            f"chk-{each.checkpoint_id} of epoch {each.epoch}: "
            f"{milliseconds_text(each.duration_ms)}",
            _checkpoint_href(timeline, place, each.checkpoint_id),
        )
        for each in timeline.recorded
        if each.triggered_at_ms >= first_ms
    ]  # fmt: skip
    for entry in timeline.events:
        if entry.triggered_at_ms is None or entry.triggered_at_ms < first_ms:
            continue
        is_aborted = entry.status is EntryStatus.ABORTED
        if is_aborted or entry.kind in (EntryKind.SAVEPOINT, EntryKind.RESTART):
            spans.append(
                Span(
                    "aborted" if is_aborted else "savepoints", entry.triggered_at_ms,
                    entry.duration_ms or 0, FAILED if is_aborted else "taken",
                    f"{entry.kind} {entry.status}, epoch {entry.epoch}: {entry.reason or ''}",
                )
            )  # fmt: skip
    spans += [
        Span("failures", each.at_ms, 0, FAILED, f"{each.what}: {each.reason[:200]}", "#failures")
        for each in timeline.failures
        if each.is_of_run and each.at_ms is not None and each.at_ms >= first_ms
    ]
    return time_chart("What happened when", _ROWS, spans)
