"""The pages of the console: from models to HTML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.console.data.glances import Glance
from pyspark_ckpt.console.data.kept_files import KeptFiles
from pyspark_ckpt.console.data.places import Places, QueryPlace, SavepointPlace
from pyspark_ckpt.console.data.planned import plan_rows, plan_summary
from pyspark_ckpt.console.data.queries import QueryIdentity, QuerySummary
from pyspark_ckpt.console.data.slow_epochs import SlowEpoch, WaysBack, checkpoint_with
from pyspark_ckpt.console.data.snapshots import COLUMN_MEANINGS, COLUMNS, SnapshotPage
from pyspark_ckpt.console.data.states import StatePage
from pyspark_ckpt.console.data.timeline import (
    OPERATOR_PHASES,
    PHASE_MEANINGS,
    UNDIVIDED,
    Timeline,
    user_line,
)
from pyspark_ckpt.console.data.trends import Growth
from pyspark_ckpt.console.html.charts import Chart, line_chart
from pyspark_ckpt.console.html.family import family_chart
from pyspark_ckpt.console.html.query_charts import (
    durations_chart,
    epochs_chart,
    events_chart,
    phases_shown,
    sizes_chart,
)
from pyspark_ckpt.console.html.rendering import bytes_text, render
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.layout import checkpoint_name
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.run_record import RunStarted
from pyspark_ckpt.restore.plan import RestorePlan

SLOWEST_SHOWN = 12
_SOURCES = {
    "option": "an option of the writer",
    "conf": "Spark's conf",
    "restoreFrom": "restoreFrom(...)",
    "location": "the query's location, or rescale(...)",
}


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
    """Return the page of one query; `ways` is ``None`` beside a part of its checkpoints."""
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
    return site.page(
        "state.html",
        f"State of {page.name}",
        query=place,
        tab="state",
        problems=page.problems,
        chart=_growth_chart(page.growth) if page.growth.trends else None,
        growth=page.growth,
        samples=page.samples,
        states=page.states,
        grown=page.grown,
        slow=page.slow,
        timers=page.timers,
        older_name=page.older_name,
        older_at_ms=page.older_at_ms,
        entries=entries,
        rows=[] if entries is None else [_shown(row) for row in entries.rows],
    )


def _growth_chart(growth: Growth) -> Chart:
    series = {trend.name: trend.sizes for trend in growth.trends}
    return line_chart("Size by state", series, bytes_text)


def _shown(row: dict[str, Any]) -> dict[str, str | None]:
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
