"""Ten questions, each answered by the console in two steps at most, in a real Chromium.

The directory has a query that grows and was slow once, a fork of it that fails in the user's code,
a skewed query, a running one, and a file that nothing needs.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.console.data.places import find_places
from pyspark_ckpt.console.data.states import state_page
from pyspark_ckpt.console.opening import open_console
from pyspark_ckpt.storage.open import LocalStorage
from tests.query.harness import OFTEN, RETAINED, Feed, Job
from tests.query.model import OUTPUT, Reveal
from tests.servers.chromium import chromium

SLOW_S = 6.0
SLOW_EPOCH = 3
DAY_S = 86_400


class Shop(Reveal):
    """The key `slow` takes its time, and the key `bad` fails."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if key[0] == "bad":
            raise ValueError("the price is negative")
        if key[0] == "slow":
            time.sleep(SLOW_S)
        yield from super().handleInputRows(key, rows, timerValues)


class Visits(Shop):
    """A changed program: its `recent` has other values, and it no longer has the state `tally`."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, total long")
        self.recent = handle.getListState("recent", "v array<long>")

    def keep_recent(self, v: int) -> None:
        self.recent.appendValue(([v],))

    def keep_tally(self, v: int) -> None:
        pass

    def reveal(self) -> str:
        return ""


@dataclass(frozen=True)
class Town:
    """The directory, with what is true about its queries."""

    root: Path
    savepoint: str
    newest: int
    skewed_subtask: int
    leaked: str


@pytest.fixture(scope="module")
def town(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, modules_by_value: None
) -> Iterator[Town]:
    base = tmp_path_factory.mktemp("town")

    def job(name: str) -> Job:
        feed = Feed(base / f"in_{name}")
        place = {"location": f"all/{name}", "out": f"out_{name}"}
        made = Job(spark, base, feed, processor=Shop, output=OUTPUT, **place)
        return made.using(OFTEN | {RETAINED: "5"})

    growing = job("orders")
    growing.feed.add([("bob", 1), ("ada", 1)])
    query = growing.writer().queryName("orders").start()
    for number in range(6):
        query.processAllAvailable()
        newest = query.triggerCheckpoint()
        slow = [("slow", 1)] if number + 1 == SLOW_EPOCH else []
        growing.feed.add(
            [("ada", 7 * each + number) for each in range(5 * number)] + slow + [("bob", 1)]
        )
    query.processAllAvailable()
    newest = query.triggerCheckpoint()
    savepoint = query.stopWithSavepoint(str(base / "all" / "savepoints"))

    fork = growing.but(location="all/trial", out="out_trial")
    growing.feed.add([("bad", 1)])
    for user, snapshot in (("ann", savepoint.path), ("bob", None)):  # bob starts it again
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOGNAME", user)
            failing = fork.writer(snapshot).queryName("trial").start()
            with pytest.raises(ckpt.errors.ProcessorError):
                failing.awaitTermination()

    skewed = job("clicks")
    skewed.feed.add([("hot", 3 * each + 1) for each in range(50)])
    clicks = skewed.writer().queryName("clicks").start()
    clicks.processAllAvailable()
    clicks.triggerCheckpoint()
    clicks.stop()
    sizes = ckpt.location(str(skewed.location_path)).subtask_history()
    largest = int(sizes.loc[sizes["size_bytes"].idxmax()]["subtask"])

    leaked = "shared/source-0-0-0123456789abcdef.log"
    stray = growing.checkpoint_path / leaked
    stray.write_bytes(b"123")
    os.utime(stray, (time.time() - 9 * DAY_S,) * 2)

    running = job("visits").but(processor=Visits)
    running.feed.add([("a", 1)])
    visits = running.writer().queryName("visits").start()
    visits.processAllAvailable()
    visits.triggerCheckpoint()
    yield Town(base / "all", savepoint.path, newest.checkpoint_id, largest, leaked)
    visits.stop()


@dataclass(frozen=True)
class Question:
    """What is clicked from the first page, where the answer is, and when it is right."""

    clicks: tuple[str, ...]
    place: str
    is_right: Callable[[str, Town], bool]


def _row(name: str) -> str:
    return f"#queries tr:has(a:text-is('{name}'))"


def _outcomes(text: str) -> dict[str, str]:
    """Return the outcome of each state in a plan's table."""
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    return {row[1]: row[2] for row in rows if not row[1].startswith("(")}


_REPLACE = """(pairs) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const [found, shown] of pairs)
      texts.currentNode.data = texts.currentNode.data.replaceAll(found, shown);
}"""


def _take_picture(page: Any, path: Path, town: Town) -> None:
    """Take a picture for the docs, without what is of this machine."""
    shown = {
        str(town.root): "/data/streams",
        __file__: "/data/jobs/orders.py",
        f"@{socket.gethostname()}": "@host",
        f"{getpass.getuser()}@": "ada@",
    }
    page.evaluate(_REPLACE, list(shown.items()))
    page.screenshot(path=path, full_page=True)


QUESTIONS = {
    "why was epoch 3 slow": Question(
        (f"{_row('orders')} >> a >> nth=0",),
        # the column "user code" is the longest phase
        f"#slowest:has(th:nth-child(9):text-is('user code')) #epoch-{SLOW_EPOCH} "
        "td:nth-child(9).worst",
        lambda text, _: float(text.split()[0]) >= SLOW_S and text.endswith(" s"),
    ),
    "which key grew": Question(
        (f"{_row('orders')} >> text=state",),
        "#grew tr:has(td) >> nth=0",
        lambda text, _: text.split()[0] == "ada",
    ),
    # The first page marks the query, so nobody has to open all of them.
    "which subtask is skewed": Question(
        ("#queries td.skewed a.worst",),
        "main",
        lambda text, town: (
            " of clicks" in text.partition("\n")[0]
            and f"Skew 2.00: subtask {town.skewed_subtask}" in text
        ),
    ),
    "what failed last, and where in my code": Question(
        (),
        "#queries .failure >> nth=0",
        lambda text, _: "the price is negative" in text and "test_console_questions.py" in text,
    ),
    "does the state grow without bound": Question(
        (f"{_row('orders')} >> text=state",),
        "#growth",
        lambda text, _: bool(re.search(r"op / recent.*yes, by about", text)),
    ),
    "which checkpoint do I go back to": Question(
        (f"{_row('orders')} >> a >> nth=0",),
        "#go-back",
        lambda text, town: f"chk-{town.newest}" in text,
    ),
    "what would this deploy drop": Question(
        (f"{_row('visits')} >> text=plan", "form button"),
        "#plan",
        lambda text, _: (
            _outcomes(text)
            == {"count": "restored", "recent": "refused", "tally": "kept, not in the program"}
            and "it stays stored" in text
        ),
    ),
    "what does this savepoint need": Question(
        ("#savepoints a >> nth=0",), "#needs", lambda text, _: "op" in text and "count" in text
    ),
    "who made this fork": Question(
        (f"{_row('trial')} >> a >> nth=0",),
        "#origin",
        lambda text, town: (
            bool(re.search(r"first started by ann@\S+, last by bob@", text))
            and Path(town.savepoint).name in text
        ),
    ),
    "is anything leaking on the store": Question(
        ("#queries td.leaks a.marked",),
        "main",
        lambda text, town: (
            "Files of orders" in text
            and "1 file that nothing needs, 3 B" in text
            and town.leaked in text
        ),
    ),
}


@pytest.mark.soak
def test_the_key_that_takes_most_time_is_found_from_samples(town: Town) -> None:
    places = find_places(LocalStorage(town.root))
    (place,) = [each for each in places.queries if each.path.endswith("/orders")]
    slowest, *others = state_page(place, None, has_data=True).slow
    assert (slowest.operator, slowest.record.key) == ("op", "slow")
    assert slowest.record.ms > 1000 * SLOW_S / 2
    assert all(each.record.ms < slowest.record.ms for each in others)


@pytest.mark.soak
def test_ten_questions_are_answered_rightly_in_two_steps(town: Town) -> None:
    console = open_console(str(town.root), host="127.0.0.1", port=0)
    screenshots = os.environ.get("CONSOLE_SCREENSHOTS")
    wrong = {}
    try:
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            for number, (name, question) in enumerate(QUESTIONS.items()):
                assert len(question.clicks) <= 2
                page.goto(console.url)
                for selector in question.clicks:
                    page.click(selector, timeout=60_000)
                text = str(page.locator(question.place).first.inner_text(timeout=60_000))
                if not question.is_right(text, town):
                    wrong[name] = text
                if screenshots is not None:
                    _take_picture(page, Path(screenshots) / f"{number}.png", town)
                    print(f"--- {name}\n{text}\n")
    finally:
        console.close()
    assert wrong == {}
