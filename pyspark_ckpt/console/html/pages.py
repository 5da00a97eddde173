"""The pages of the console: from models to HTML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.glances import Glance
from pyspark_ckpt.console.data.places import Places, QueryPlace, SavepointPlace
from pyspark_ckpt.console.data.planned import plan_rows, plan_summary
from pyspark_ckpt.console.data.queries import QueryIdentity, QuerySummary
from pyspark_ckpt.console.data.slow_epochs import SlowEpoch, WaysBack, checkpoint_with
from pyspark_ckpt.console.data.snapshots import COLUMN_MEANINGS, COLUMNS, KeptFiles, SnapshotPage
from pyspark_ckpt.console.data.states import StatePage
from pyspark_ckpt.console.data.timeline import (
    OPERATOR_PHASES,
    PHASE_MEANINGS,
    PHASES,
    UNDIVIDED,
    Timeline,
    user_line,
)
from pyspark_ckpt.console.html.charts import (
    FAILED,
    Bar,
    Chart,
    Span,
    line_chart,
    stacked_bars,
    time_chart,
)
from pyspark_ckpt.console.html.family import family_chart
from pyspark_ckpt.console.html.rendering import bytes_text, count_text, milliseconds_text, render
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import EntryKind, EntryStatus
from pyspark_ckpt.history.run_log import RunStarted
from pyspark_ckpt.restore.plan import RestorePlan

SLOWEST_SHOWN = 12

_SOURCES = {
    "option": "an option of the writer",
    "conf": "Spark's conf",
    "restoreFrom": "restoreFrom(...)",
    "location": "the query's location, or rescale(...)",
}

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


@dataclass(frozen=True, slots=True)
class Site:
    """What all pages show: the directory, and whether it was unpacked from a bundle.

    `made_at_ms` is when the bundle was made. Its pages are as of then, or a query that was well
    would look silent a few minutes later.
    """

    root: str
    is_bundle: bool = False
    made_at_ms: int | None = None

    def now_ms(self) -> int:
        """Return the time that the pages are as of."""
        return now_ms() if self.made_at_ms is None else self.made_at_ms

    def page(self, template: str, title: str, **values: Any) -> str:
        """Return a page."""
        shared = {"root": self.root, "is_bundle": self.is_bundle, "as_of_ms": self.now_ms()}
        return render(template, title=title, **shared, **values)


def queries_page(
    site: Site,
    places: Places,
    summaries: Sequence[QuerySummary],
    glances: Mapping[str, Glance],
    savepoints: Sequence[tuple[SavepointPlace, CheckpointMetadata | CkptError]],
) -> str:
    """Return the page of all queries and savepoints."""
    return site.page(
        "queries.html",
        "Queries",
        places=places,
        summaries=summaries,
        glances=glances,
        most_skewed=max(glances, key=lambda key: _skew(glances[key]), default=None),
        fastest=max(glances, key=lambda key: glances[key].bytes_per_epoch or 0.0, default=None),
        queries_by_id={each.query_id: each.place for each in summaries},
        savepoints=savepoints,
        family=family_chart(summaries, savepoints),
        user_line=user_line,
    )


def _skew(glance: Glance) -> tuple[float, float]:
    """Return the skew of a query, and the size of its largest subtask among equal ones."""
    summary = None if glance.skew is None else glance.skew.summaries[0]
    return (0.0, 0.0) if summary is None else (summary.skew, summary.maximum)


@dataclass(frozen=True, slots=True)
class OriginLinks:
    """The query that another one was restored from, and the page of the snapshot, if known."""

    query: QueryIdentity | None = None
    snapshot: str | None = None


def query_page(
    site: Site,
    summary: QuerySummary,
    timeline: Timeline,
    slowest: SlowEpoch | None,
    ways: WaysBack | None,
    links: OriginLinks,
) -> str:
    """Return the page of one query; `ways` is ``None`` on a page of a part of its checkpoints."""
    by_time = sorted(timeline.epochs, key=lambda row: row.record.duration_ms, reverse=True)
    return site.page(
        "query.html",
        summary.title,
        query=summary.place,
        tab="query",
        summary=summary,
        links=links,
        timeline=timeline,
        phases=phases_shown(timeline),
        meanings=PHASE_MEANINGS,
        of_operators=OPERATOR_PHASES,
        apart=(*OPERATOR_PHASES, UNDIVIDED),
        slowest=slowest,
        by_time=by_time[:SLOWEST_SHOWN],
        checkpoint_with=partial(checkpoint_with, timeline.retained),
        ways=ways,
        rollback=None if ways is None else _rollback(summary.place, ways.newest),
        spans=events_chart(timeline, summary.place),
        epochs=epochs_chart(timeline),
        durations=durations_chart(timeline, summary.place),
        sizes=sizes_chart(timeline, summary.place),
    )


def _rollback(place: QueryPlace, number: int | None) -> tuple[str, str] | None:
    """Return how to go back to a checkpoint: in the query's location, and into a new one."""
    if number is None:
        return None
    name = checkpoint_name(number)
    location = "LOCATION" if place.location is None else shlex.quote(place.location.url)
    directory = (
        f" --checkpoints-directory {shlex.quote(place.checkpoints.parent().url)}"
        if place.location is None
        else ""
    )
    restore = f"restoreFrom({place.checkpoints.url_of(name)!r})"
    return f"pyspark-ckpt rollback {location} {name}{directory}", restore


def checkpoint_page_html(site: Site, place: QueryPlace, number: int, page: SnapshotPage) -> str:
    """Return the page of one checkpoint."""
    name = checkpoint_name(number)
    is_newest = page.newest == number
    of_query = page.metadata.query_name or page.metadata.query_id
    is_older = page.newest is not None and not is_newest
    newest = f" (newest: {checkpoint_name(page.newest or 0)})" if is_older else ""
    return site.page(
        "snapshot.html",
        f"{name} of {of_query[:80]}{newest}",
        query=place,
        tab="newest" if is_newest else "checkpoint",
        here=name,
        page=page,
        of_query=None,
        meanings=COLUMN_MEANINGS,
        columns=COLUMNS,
        path=place.checkpoints.url_of(name),
        plan=f"/q/{place.key}/plan?from=c-{number}",
        sources=source_positions(page.metadata),
    )


def savepoint_page_html(
    site: Site, place: SavepointPlace, page: SnapshotPage, query: QueryIdentity | None
) -> str:
    """Return the page of one savepoint."""
    return site.page(
        "snapshot.html",
        f"Savepoint {place.storage.name}",
        page=page,
        of_query=query,
        meanings=COLUMN_MEANINGS,
        columns=COLUMNS,
        path=place.storage.url,
        plan=None if query is None else f"/q/{query.place.key}/plan?from=s-{place.key}",
        sources=source_positions(page.metadata),
    )


def source_positions(metadata: CheckpointMetadata) -> list[tuple[str, str]]:
    """Return the sources that a snapshot continues: the name of each, and the offset."""
    lines = metadata.offsets_entry.split("\n")[2:]  # after the version and what is for all sources
    numbers = metadata.source_ids or range(len(lines))
    names = dict(enumerate(metadata.source_names or ()))
    by_number = dict(zip(numbers, lines, strict=False))  # a source may be read at several places
    return [(names.get(number, f"source {number}"), by_number[number]) for number in by_number]


def state_page_html(site: Site, place: QueryPlace, page: StatePage) -> str:
    """Return the page of a query's states."""
    entries = page.entries
    series = {trend.name: trend.sizes for trend in page.growth.trends}
    chart = line_chart("Size by state", series, bytes_text) if series else None
    return site.page(
        "state.html",
        f"State of {page.name}",
        query=place,
        tab="state",
        problems=page.problems,
        chart=chart,
        growth=page.growth,
        samples=page.samples,
        states=page.states,
        grown=page.grown,
        slow=page.slow,
        timers=page.timers,
        older_name=page.older_name,
        older_at_ms=page.older_at_ms,
        entries=entries,
        rows=[] if entries is None else [_texts_of_row(row) for row in entries.rows],
    )


def _texts_of_row(row: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: value if value is None or isinstance(value, str) else json.dumps(value, default=_text)
        for name, value in row.items()
    }


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def settings_page(site: Site, place: QueryPlace, name: str, starts: Sequence[RunStarted]) -> str:
    """Return the page of the settings in force."""
    before = {each.key: each.value for each in starts[-2].settings} if len(starts) > 1 else {}
    return site.page(
        "settings.html",
        f"Settings of {name}",
        query=place,
        tab="settings",
        started=starts[-1] if starts else None,
        before=before,
        sources=_SOURCES,
    )


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """What a plan page shows: the snapshots to choose from, and the plan or why there is none."""

    choices: tuple[tuple[str, str], ...]
    chosen: str | None
    drops: bool
    plan: RestorePlan | None
    problem: str | None


def plan_page(site: Site, place: QueryPlace, name: str, choice: PlanChoice) -> str:
    """Return the page of a restore plan."""
    rows = () if choice.plan is None else plan_rows(choice.plan)
    return site.page(
        "plan.html",
        f"Restore plan of {name}",
        query=place,
        tab="plan",
        choices=choice.choices,
        chosen=choice.chosen,
        drops=choice.drops,
        plan=choice.plan,
        rows=rows,
        summary=plan_summary(rows),
        problem=choice.problem,
    )


def files_page(site: Site, place: QueryPlace, name: str, kept: KeptFiles) -> str:
    """Return the page of a query's data files."""
    return site.page("files.html", f"Files of {name}", query=place, tab="files", kept=kept)


def message_page(site: Site, title: str, text: str) -> str:
    """Return a page with a text."""
    return site.page("message.html", title, text=text)


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
