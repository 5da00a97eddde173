"""The pages of the console: from models to HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_ckpt.console.data.kept_files import KeptFiles
from pyspark_ckpt.console.data.places import Places, QueryPlace, SavepointPlace
from pyspark_ckpt.console.data.queries import QuerySummary
from pyspark_ckpt.console.data.snapshots import COLUMNS, SnapshotPage
from pyspark_ckpt.console.data.states import StatePage
from pyspark_ckpt.console.data.timeline import (
    OPERATOR_PHASES,
    PHASE_MEANINGS,
    PHASES,
    UNDIVIDED,
    Timeline,
    user_line,
)
from pyspark_ckpt.console.html.charts import Bar, Chart, Span, line_chart, stacked_bars, time_chart
from pyspark_ckpt.console.html.family import family_chart
from pyspark_ckpt.console.html.rendering import render
from pyspark_ckpt.errors import CkptError
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import EntryKind, EntryStatus
from pyspark_ckpt.history.run_record import RunStarted
from pyspark_ckpt.restore.plan import RestorePlan

EPOCHS_DRAWN = 120
SLOWEST_SHOWN = 12
_ROWS = ("epochs", "checkpoints", "savepoints", "aborted", "failures")
_SOURCES = {
    "option": "an option of the writer",
    "conf": "Spark's conf",
    "restoreFrom": "restoreFrom(...)",
}


@dataclass(frozen=True, slots=True)
class Site:
    """What all pages show: the directory, and whether it was unpacked from a bundle."""

    root: str
    is_bundle: bool = False

    def page(self, template: str, title: str, **values: Any) -> str:
        """Return a page."""
        return render(template, title=title, root=self.root, is_bundle=self.is_bundle, **values)


def queries_page(
    site: Site,
    places: Places,
    summaries: Sequence[QuerySummary],
    savepoints: Sequence[tuple[SavepointPlace, CheckpointMetadata | CkptError]],
) -> str:
    """Return the page of all queries and savepoints."""
    return site.page(
        "queries.html",
        "Queries",
        places=places,
        summaries=summaries,
        savepoints=savepoints,
        family=family_chart(summaries, savepoints),
        user_line=user_line,
    )


def query_page(site: Site, summary: QuerySummary, timeline: Timeline) -> str:
    """Return the page of one query."""
    slowest = sorted(timeline.epochs, key=lambda row: row.record.duration_ms, reverse=True)
    return site.page(
        "query.html",
        summary.title,
        query=summary.place,
        tab="query",
        summary=summary,
        timeline=timeline,
        phases=_phases_shown(timeline),
        meanings=PHASE_MEANINGS,
        of_operators=OPERATOR_PHASES,
        apart=(*OPERATOR_PHASES, UNDIVIDED),
        slowest=slowest[:SLOWEST_SHOWN],
        spans=_spans(timeline, summary.place),
        epochs=_epochs_chart(timeline),
        durations=_durations_chart(timeline, summary.place),
        sizes=_sizes_chart(timeline, summary.place),
    )


def checkpoint_page_html(site: Site, place: QueryPlace, number: int, page: SnapshotPage) -> str:
    """Return the page of one checkpoint."""
    return site.page(
        "snapshot.html",
        f"chk-{number}",
        query=place,
        tab="checkpoint",
        page=page,
        columns=COLUMNS,
        path=place.checkpoints.url_of(f"chk-{number}"),
        sources=sources_text(page.metadata),
    )


def savepoint_page_html(site: Site, place: SavepointPlace, page: SnapshotPage) -> str:
    """Return the page of one savepoint."""
    return site.page(
        "snapshot.html",
        place.storage.name,
        page=page,
        columns=COLUMNS,
        path=place.storage.url,
        sources=sources_text(page.metadata),
    )


def sources_text(metadata: CheckpointMetadata) -> str:
    """Return how many sources a snapshot continues, and their names."""
    lines = metadata.offsets_entry.split("\n")[2:]
    names = metadata.source_names or ()
    named = f" ({', '.join(names)})" if names else ""
    return f"{len(set(metadata.source_ids)) or len(lines)}{named}"


def state_page_html(site: Site, place: QueryPlace, page: StatePage) -> str:
    """Return the page of a query's states."""
    entries = page.entries
    return site.page(
        "state.html",
        f"State of {page.name}",
        query=place,
        tab="state",
        problems=page.problems,
        growth=line_chart("Size by state", page.growth, "bytes") if page.growth else None,
        trends=page.trends,
        samples=page.samples,
        grown=page.grown,
        slow=page.slow,
        timers=page.timers,
        older_name=page.older_name,
        older_at_ms=page.older_at_ms,
        rows=None if entries is None else [_shown(row) for row in entries.rows],
        columns=() if entries is None else entries.columns,
        key=() if entries is None else entries.key,
        state_name="" if entries is None else entries.state,
    )


def _shown(row: dict[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value, default=_text)
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
    return site.page(
        "plan.html",
        f"Restore plan of {name}",
        query=place,
        tab="plan",
        choices=choice.choices,
        chosen=choice.chosen,
        drops=choice.drops,
        plan=choice.plan,
        problem=choice.problem,
    )


def files_page(site: Site, place: QueryPlace, name: str, kept: KeptFiles) -> str:
    """Return the page of a query's data files."""
    return site.page("files.html", f"Files of {name}", query=place, tab="files", kept=kept)


def message_page(site: Site, title: str, text: str) -> str:
    """Return a page with a text."""
    return site.page("message.html", title, text=text)


def _epochs_chart(timeline: Timeline) -> Chart:
    bars = [
        Bar(f"epoch {row.record.epoch}", row.phases_ms, f"#epoch-{row.record.epoch}")
        for row in timeline.epochs[-EPOCHS_DRAWN:]
    ]
    return stacked_bars("Time of epochs by phase", bars, _phases_shown(timeline), "ms")


def _phases_shown(timeline: Timeline) -> tuple[str, ...]:
    """Return the phases, without what stands for operators' phases if all of these are known."""
    is_known = all(row.has_operators for row in timeline.epochs)
    return tuple(name for name in PHASES if name != UNDIVIDED or not is_known)


def _durations_chart(timeline: Timeline, place: QueryPlace) -> Chart:
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
    return stacked_bars("Time of checkpoints by phase", bars, [*names, "publish"], "ms")


def _sizes_chart(timeline: Timeline, place: QueryPlace) -> Chart:
    bars = []
    for each in timeline.recorded[-EPOCHS_DRAWN:]:
        new = each.size_bytes if each.new_bytes is None else each.new_bytes
        parts = {"new": new, "in the checkpoint before": max(each.size_bytes - new, 0)}
        href = _checkpoint_href(timeline, place, each.checkpoint_id)
        bars.append(Bar(f"chk-{each.checkpoint_id}", parts, href))
    return stacked_bars(
        "Size of checkpoints: full and incremental",
        bars,
        ("new", "in the checkpoint before"),
        "bytes",
    )


def _checkpoint_href(timeline: Timeline, place: QueryPlace, number: int) -> str | None:
    """Return the link of a checkpoint that is still retained."""
    retained = {row.number for row in timeline.retained}
    return f"/q/{place.key}/chk/{number}/" if number in retained else None


def _spans(timeline: Timeline, place: QueryPlace) -> Chart:
    epochs = timeline.epochs[-EPOCHS_DRAWN:]
    spans = [
        Span(
            "epochs", row.record.began_at_ms, row.record.duration_ms, "c0",
            f"epoch {row.record.epoch}: {row.record.duration_ms} ms, {row.record.rows} rows",
            f"#epoch-{row.record.epoch}",
        )
        for row in epochs
    ]  # fmt: skip
    first_ms = min((span.began_ms for span in spans), default=0)
    spans += [
        Span(
            "checkpoints", each.triggered_at_ms, each.duration_ms, "c2",
            f"chk-{each.checkpoint_id} of epoch {each.epoch}: {each.duration_ms} ms",
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
                    entry.duration_ms or 0, "aborted" if is_aborted else "taken",
                    f"{entry.kind} {entry.status}, epoch {entry.epoch}: {entry.reason or ''}",
                )
            )  # fmt: skip
    spans += [
        Span("failures", each.at_ms, 0, "aborted", f"{each.what}: {each.reason[:200]}", "#failures")
        for each in timeline.failures
        if each.is_of_run and each.at_ms is not None and each.at_ms >= first_ms
    ]
    return time_chart("What happened when", _ROWS, spans)
