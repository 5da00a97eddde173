"""The console over the directories of real queries, also in a real browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import Row, SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.console.data.bundle import unpack_bundle, write_bundle
from pyspark_ckpt.console.data.checkpoints import retained_checkpoints
from pyspark_ckpt.console.data.places import QueryPlace, find_places
from pyspark_ckpt.console.data.planned import plan_against
from pyspark_ckpt.console.data.queries import QuerySummary, summary_of
from pyspark_ckpt.console.data.snapshots import (
    SnapshotPage,
    bundled_kept_files,
    checkpoint_page,
    kept_files,
)
from pyspark_ckpt.console.data.states import KeyRequest, state_page
from pyspark_ckpt.console.data.timeline import timeline_of
from pyspark_ckpt.console.html.family import family_chart, read_savepoints
from pyspark_ckpt.console.opening import open_console
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.history.run_log import SILENCE_MS, RunState
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import OFTEN, RETAINED, Feed, Job
from tests.query.model import OUTPUT, Reveal
from tests.servers.chromium import chromium

HOSTILE = "<img src=x onerror=alert(1)>"


class Growing(Reveal):
    """One key gets most of the rows; a key called `bad` fails."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if key[0] == "bad":
            raise ValueError("this key is bad")
        yield from super().handleInputRows(key, rows, timerValues)


@dataclass(frozen=True)
class Shown:
    """Two real queries: one that runs to its end, and a fork of its savepoint that fails."""

    root: Path
    savepoint: str
    screenshots: Path | None

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.root)

    def place(self, name: str) -> QueryPlace:
        places = find_places(self.storage)
        (found,) = [each for each in places.queries if each.path.endswith(f"/{name}")]
        return found


@pytest.fixture(scope="module")
def shown(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, modules_by_value: None
) -> Shown:
    base = tmp_path_factory.mktemp("shown")
    job = Job(spark, base, Feed(base / "in"), processor=Growing, output=OUTPUT, location="all/main")
    job = job.using(OFTEN | {RETAINED: "5"})
    job.feed.add([("ada", 1), (HOSTILE, 2)])
    query = job.writer().queryName(HOSTILE).start()
    for number in range(6):
        query.processAllAvailable()
        query.triggerCheckpoint()
        job.feed.add([("ada", 7 * each + number) for each in range(4 * number)] + [("bob", 1)])
    query.processAllAvailable()
    savepoint = query.stopWithSavepoint(str(base / "all" / "savepoints"))
    fork = job.but(location="all/fork", out="fork_out")
    failing = fork.writer(savepoint.path).queryName("fork").start()
    failing.processAllAvailable()
    failing.triggerCheckpoint()
    job.feed.add([("bad", 1)])
    with pytest.raises(ckpt.errors.ProcessorError):
        failing.awaitTermination()
    screenshots = os.environ.get("CONSOLE_SCREENSHOTS")
    return Shown(base / "all", savepoint.path, Path(screenshots) if screenshots else None)


@pytest.mark.slow
def test_queries_and_savepoints_below_a_directory_are_found(shown: Shown) -> None:
    places = find_places(shown.storage)
    assert sorted(each.path.rpartition("/")[2] for each in places.queries) == ["fork", "main"]
    assert [each.storage.url for each in places.savepoints] == [shown.savepoint]
    for path in ("main", "main/pyspark_ckpt"):
        (one,) = find_places(shown.storage.child(path)).queries
        assert one.key == shown.place("main").key


@pytest.mark.slow
def test_a_summary_says_what_became_of_a_query(shown: Shown) -> None:
    main, fork = (summary_of(shown.place(name), 2**42) for name in ("main", "fork"))
    assert main.run.state is RunState.STOPPED
    assert fork.run.state is RunState.FAILED
    assert fork.origin is not None
    assert (fork.origin.path, fork.origin.query_id) == (shown.savepoint, main.query_id)
    assert (main.name, main.epochs_behind) == (HOSTILE, 0)
    assert main.metadata is not None
    assert main.committed_epoch == main.metadata.epoch == 6


def test_the_lineage_shows_the_fork_below_its_savepoint_below_its_query(shown: Shown) -> None:
    places = find_places(shown.storage)
    savepoints = read_savepoints(places.savepoints)
    summaries = [summary_of(place, 2**42) for place in places.queries]
    chart = family_chart(summaries, savepoints)
    parallelism = {each.parallelism for each in _metadata(summaries[0]).operators}
    (number,) = parallelism
    assert [(box.label, box.href, box.style) for box in chart.boxes] == [
        (f"{HOSTILE}: stopped, parallelism {number}", f"/q/{shown.place('main').key}/",
         "state-stopped"),
        ("savepoint of epoch 6", f"/s/{savepoints[0][0].key}/", "taken"),
        (f"fork: failed, parallelism {number}", f"/q/{shown.place('fork').key}/", "state-failed"),
    ]  # fmt: skip
    main, savepoint, fork = chart.boxes
    assert main.x < savepoint.x < fork.x
    assert len(chart.lines) == 2
    alone = family_chart([each for each in summaries if each.name == "fork"], savepoints)
    assert [box.label for box in alone.boxes] == ["savepoint of epoch 6, not here", fork.label]


def _metadata(summary: QuerySummary) -> CheckpointMetadata:
    assert summary.metadata is not None
    return summary.metadata


@pytest.mark.slow
def test_a_query_is_running_until_it_gives_no_sign_of_life(job: Job) -> None:
    job.feed.add([("a", 1)])
    with job.running() as query:
        query.processAllAvailable()
        query.triggerCheckpoint()
        (place,) = find_places(LocalStorage(job.location_path)).queries
        alive_at_ms = summary_of(place, 0).run.alive_at_ms
        assert alive_at_ms is not None
        assert summary_of(place, alive_at_ms + SILENCE_MS).run.state is RunState.RUNNING
        assert summary_of(place, alive_at_ms + SILENCE_MS + 1).run.state is RunState.SILENT
        console = query.ui()
        try:
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", console.url)
            with urllib.request.urlopen(console.url, timeout=60) as answer:
                page = answer.read().decode()
        finally:
            console.close()
        assert place.key in page
        assert f">{RunState.RUNNING}<" in page
    assert summary_of(place, 2**42).run.state is RunState.STOPPED


def test_a_timeline_has_every_epoch_and_failure(shown: Shown) -> None:
    timeline = timeline_of(shown.place("main"))
    assert [row.record.epoch for row in timeline.epochs] == list(range(7))
    assert [row.record.epoch for row in timeline.epochs if row.is_first] == [0]
    for row in timeline.epochs:
        assert sum(row.phases_ms.values()) >= row.record.duration_ms
    assert any(row.checkpoint_id is not None for row in timeline.epochs)
    assert len(timeline.retained) == 5
    (failure,) = timeline_of(shown.place("fork")).failures
    assert failure.line is not None
    assert "test_console.py" in failure.line
    assert 'raise ValueError("this key is bad")' in failure.line


def test_a_checkpoint_has_a_row_per_subtask_and_says_who_needs_a_file(shown: Shown) -> None:
    place = shown.place("main")
    newest = timeline_of(place).retained[0].number
    page = checkpoint_page(place, newest)
    assert isinstance(page, SnapshotPage)
    (table,) = page.operators
    subtasks = ckpt.location(place.path).subtask_history()
    subtasks = subtasks[subtasks.checkpoint_id == newest]
    assert [row.numbers[0] for row in table.rows] == subtasks.size_bytes.tolist()
    largest = subtasks.size_bytes.max()
    assert table.skew == pytest.approx(largest / subtasks.size_bytes.mean())
    assert {state.name for state in table.states} == {"count", "recent", "tally"}
    assert page.own_bytes + page.shared_bytes == sum(file.size_bytes for file in page.files)
    for file in page.files:
        for other in file.also_needed_by:
            metadata = (shown.root / f"main/pyspark_ckpt/chk-{other}/_metadata").read_bytes()
            assert file.path.encode() in metadata
    assert checkpoint_page(place, 10**6) is None


def test_states_are_sampled_and_one_keys_entries_are_read(shown: Shown) -> None:
    place = shown.place("main")
    page = state_page(place, None, has_data=True)
    assert not page.problems
    samples = {each.name: each.sample for each in page.samples}
    assert set(samples) == {"count", "recent", "tally"}
    tally = samples["tally"]
    assert tally is not None
    assert tally.is_whole
    assert tally.heaviest[0].text == ("ada",)
    older = timeline_of(place).retained[-1].number
    with ckpt.location(place.checkpoints.url_of(f"chk-{older}")).state() as snapshot:
        before = snapshot.state("op", "tally").to_pandas()
    assert tally.heaviest[0].rows_before == (before["k"] == "ada").sum()
    with ckpt.location(place.path).state() as snapshot:
        rows = snapshot.state("op", "count").to_pandas()
        assert samples["count"] is not None
        assert samples["count"].rows == len(rows)
        expected = snapshot.state("op", "count").get("ada")
    entries = state_page(place, KeyRequest("op", "count", ("ada",)), has_data=True).entries
    assert entries is not None
    (row,) = entries.rows
    assert {**row, "k": "ada"} == {"k": "ada", **expected}
    wrong = state_page(place, KeyRequest("op", "nothing", ("ada",)), has_data=True)
    assert "no state" in wrong.problems[0]


def test_the_plan_and_the_files_of_a_query(shown: Shown) -> None:
    place = shown.place("fork")
    metadata = summary_of(place, 0).metadata
    assert metadata is not None
    plan = plan_against(metadata, shown.savepoint, drops=False)
    assert not plan.errors
    assert {row.outcome for row in plan.states} == {"restored"}
    (operator,) = metadata.operators
    renamed = msgspec.structs.replace(
        metadata, operators=(msgspec.structs.replace(operator, uid="renamed"),)
    )
    for drops, outcome in ((False, "refused"), (True, "dropped")):
        plan = plan_against(renamed, shown.savepoint, drops=drops)
        assert {row.outcome for row in plan.states if row.operator == "op"} == {outcome}
        assert bool(plan.errors) != drops
    other = shown.place("main").key
    app = make_app(shown.storage).test_client()
    page = app.get(f"/q/{place.key}/plan?from=q-{other}", base_url="http://127.0.0.1").text
    assert "It can start from chk-" in page
    assert app.get(f"/q/{place.key}/plan?from=q-{place.key}").status_code != 200
    kept = kept_files(place)
    assert kept.problem is None
    assert kept.files == kept.needed + kept.recent + len(kept.unneeded)
    stray = shown.root / "fork/pyspark_ckpt/shared/source-0-0-0123456789abcdef.log"
    stray.write_bytes(b"123")
    assert kept_files(place).unneeded == (*kept.unneeded, f"shared/{stray.name}")
    stray.unlink()


def test_a_bundle_says_offline_who_needs_the_files_and_what_is_leaking(
    shown: Shown, tmp_path: Path
) -> None:
    place = shown.place("fork")
    stray = shown.root / "fork/pyspark_ckpt/shared/source-0-0-0123456789abcdef.log"
    stray.write_bytes(b"123")
    judged = kept_files(place)
    places = find_places(shown.storage)
    write_bundle(shown.storage, places, tmp_path / "bundle")
    stray.unlink()
    index = unpack_bundle(str(tmp_path / "bundle"), tmp_path / "unpacked")
    root = LocalStorage(tmp_path / "unpacked")
    (number,) = [each for each, path in index.queries.items() if path.endswith("/fork")]
    (bundled,) = [each for each in find_places(root).queries if f"/{number}" in each.path[-3:]]
    found = bundled_kept_files(bundled)
    assert found == judged
    assert f"shared/{stray.name}" in found.unneeded
    with retained_checkpoints(place.checkpoints) as retained:
        (newest,) = retained.newest(1)
    pages = [checkpoint_page(each, newest) for each in (place, bundled)]
    files = [page.files for page in pages if isinstance(page, SnapshotPage)]
    assert files[0] == files[1] != ()
    browser = make_app(root, bundle="a bundle").test_client()
    page = browser.get(f"/q/{bundled.key}/files", headers={"Host": "127.0.0.1"})
    assert stray.name in page.text
    assert "when the bundle was made" in page.text


@pytest.mark.soak
def test_the_commands_serve_a_directory_and_a_bundle(shown: Shown, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyspark_ckpt"]
    bundle = tmp_path / "queries.bundle"
    subprocess.run([*command, "bundle", shown.root, "--output", bundle], check=True)
    for path in (shown.root, bundle):
        server = subprocess.Popen(
            [*command, "ui", str(path), "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert url is not None, line
            fetch = f"import urllib.request as u; print(u.urlopen({url[0]!r}).read().decode())"
            page = subprocess.check_output([sys.executable, "-c", fetch], text=True)
            assert "this key is bad" in page
            assert HOSTILE not in page
        finally:
            server.terminate()
            server.wait(10)


@dataclass(frozen=True)
class Question:
    """A question, the links to click from the first page, and what then answers it."""

    clicks: tuple[str, ...]
    answer: str


MAIN = "#queries tr:has(a:text-is('<img src=x onerror=alert(1)>'))"
FORK = "#queries tr:has(a:text-is('fork'))"
QUESTIONS = {
    "why was epoch N slow": Question((f"{MAIN} >> a >> nth=0",), "#slowest td.worst >> nth=0"),
    "which key grew": Question((f"{MAIN} >> text=state",), ".heaviest td:text-is('ada') >> nth=0"),
    "which subtask is skewed": Question((f"{MAIN} >> text=/^chk-/",), ".skew"),
    "what failed last and where in my code": Question((), "#queries .failure code"),
    "is the state growing without bound": Question((f"{MAIN} >> text=state",), "#growth"),
    "which checkpoint do I go back to": Question((f"{FORK} >> a >> nth=0",), "#go-back"),
    "what would this deploy drop": Question((f"{FORK} >> text=plan",), "#plan td"),
    "what does this savepoint need": Question(("#savepoints a >> nth=0",), "#needs td >> nth=0"),
    "who made this fork": Question((f"{FORK} >> a >> nth=0",), "#origin"),
    "is anything leaking on the store": Question((f"{MAIN} >> text=files",), "#leak"),
}


@pytest.mark.soak
def test_ten_questions_are_answered_in_two_steps_in_a_browser(shown: Shown) -> None:
    console = open_console(shown.storage.url, host="127.0.0.1", port=0)
    try:
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1200, "height": 760})
            problems: list[str] = []
            asked: list[str] = []
            page.on("console", lambda message: problems.append(message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", lambda dialog: problems.append(dialog.message))
            page.on("request", lambda request: asked.append(request.url))
            for number, (name, question) in enumerate(QUESTIONS.items()):
                assert len(question.clicks) <= 2
                page.goto(console.url)
                for selector in question.clicks:
                    page.click(selector, timeout=60_000)
                assert page.locator(question.answer).first.inner_text(timeout=60_000), name
                if shown.screenshots is not None:
                    page.screenshot(path=shown.screenshots / f"console-{number}.png")
            assert "test_console.py" in _text(page, console.url, "#queries .failure code")
            page.goto(console.url)
            page.click("#savepoints a >> nth=0")
            assert "source 0 at {" in page.locator("#sources").inner_text()
            page.click("#plan-link")
            assert "savepoint" in page.locator("h2").first.inner_text()
            assert page.locator("#plan td").count() > 0
            page.goto(console.url)
            page.click(f"{MAIN} >> text=state")
            page.locator("form input[name=key]").first.fill("ada")
            page.locator("form button").first.click()
            assert page.locator("#entries td").first.inner_text() == "ada"
            assert problems == []
            assert all(url.startswith(console.url) for url in asked), "nothing of the internet"
    finally:
        console.close()


def _text(page: Any, url: str, selector: str) -> str:
    page.goto(url)
    return str(page.locator(selector).first.inner_text())
