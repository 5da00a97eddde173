"""What a notebook shows: HTML forms, plots of histories, and a live view."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import pyspark_ckpt as ckpt
from tests.query.harness import INTERVAL, Job, await_progress
from tests.query.model import Count
from tests.query.restoring.numbered_job import PARTITIONS, writer_of
from tests.query.session_conf import session_conf

HOSTILE = "<script>alert(1)</script>"
SELDOM = {INTERVAL: "1h"}


def test_html_forms_show_their_values_and_escape_them(job: Job) -> None:
    job = job.but(processor=Count, output="k string, n long").using(SELDOM)
    job.feed.add([(HOSTILE, 1)])
    query = job.writer().queryName(HOSTILE).start()
    try:
        query.processAllAvailable()
        checkpoint = query.triggerCheckpoint()
        first = query.triggerSavepoint(str(job.base / "savepoints"))
        job.feed.add([("b", 1), ("b", 2)])
        query.processAllAvailable()
        second = query.triggerSavepoint(str(job.base / "savepoints"))
        shown = {
            "query": query._repr_html_(),
            "checkpoint": checkpoint._repr_html_(),
            "savepoint": first._repr_html_(),
            "plan": ckpt.location(first.path).plan(job.df())._repr_html_(),
            "difference": ckpt.location(first.path).diff(second.path)._repr_html_(),
            "aborted": ckpt.results.AbortedCheckpoint(
                ckpt.results.CheckpointKind.CHECKPOINT,
                3,
                7,
                0,
                5,
                ckpt.results.AbortReason.EXPIRED,
                HOSTILE,
            )._repr_html_(),
        }
    finally:
        query.stop()
    assert not [name for name, html in shown.items() if "<script" in html]
    assert "&lt;script&gt;" in shown["query"]
    assert "&lt;script&gt;" in shown["aborted"]
    assert "running" in shown["query"]
    assert first.path in shown["savepoint"]
    assert checkpoint.path in shown["checkpoint"]
    assert "can start" in shown["plan"]
    assert "<td" in shown["plan"]
    counts = ckpt.location(first.path).diff(second.path).counts
    (row,) = counts.values.tolist()
    assert all(f">{cell}</td>" in shown["difference"] for cell in row)


@pytest.mark.slow
def test_a_history_is_plotted_with_its_phases_sizes_and_failures(job: Job) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    job = job.but(processor=Count, output="k string, n long").using(SELDOM)
    job.feed.add([("a", 1)])
    with job.running() as query:
        query.processAllAvailable()
        query.triggerCheckpoint()
        job.feed.add([("b", 1)])
        query.processAllAvailable()
        query.triggerCheckpoint()
        history = query.history()
        of_path = ckpt.location(str(job.location_path)).history()
    durations, sizes = history.plot()
    bars = sum(patch.get_height() for patch in durations.patches)
    assert bars == pytest.approx(history["duration_ms"].sum(), abs=1)
    phases = {label.get_text() for label in durations.get_legend().get_texts()}
    assert phases == {*history["phases_ms"][0], "rest"}
    full, new = sizes.lines
    assert [round(y * 1024**2) for y in full.get_ydata()] == history["size_bytes"].tolist()
    assert [int(x) for x in full.get_xdata()] == history["checkpoint_id"].tolist()
    assert len(new.get_ydata()) == 2
    aborted = history.iloc[[0]].assign(status="aborted", checkpoint_id=9, phases_ms=None)
    import pandas as pd

    both = pd.concat([of_path, aborted])
    labels = {each.get_text() for each in both.plot()[0].get_legend().get_texts()}
    assert "aborted" in labels
    assert history.plot.bar(x="checkpoint_id", y="files") is not None, "pandas' plots stay"
    mpl.pyplot.close("all")


@pytest.mark.slow
def test_a_plot_without_its_library_names_the_extra(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "import pandas as pd\n"
        "from pyspark_ckpt.history.frames import History\n"
        "names = ['kind', 'status', 'checkpoint_id', 'triggered_at', 'duration_ms', 'size_bytes']\n"
        "try:\n"
        "    History(columns=names).plot()\n"
        "except Exception as exc:\n"
        "    print(type(exc).__name__, exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("ConfigurationError")
    assert "pyspark_ckpt[plot]" in done.stdout


class Interrupting(io.StringIO):
    """Interrupts this process, as Ctrl-C does, when the view is written for the third time."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if ": running" in text and self.getvalue().count(": running") == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return written


def test_an_interrupt_ends_the_view_and_not_the_query(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job.but(processor=Count, output="k string, n long").using(SELDOM)
    job.feed.add([("a", 1)])
    with job.running() as query:
        query.processAllAvailable()
        before = signal.getsignal(signal.SIGINT)
        with monkeypatch.context() as patched:
            out = Interrupting()
            patched.setattr(sys, "stdout", out)
            query.watch(refresh_s=0.01)
        assert signal.getsignal(signal.SIGINT) is before
        assert out.getvalue().count(": running") == 3
        assert "no longer watched" in out.getvalue()
        assert query.isActive
        job.feed.add([("a", 2)])
        query.processAllAvailable()
    with monkeypatch.context() as patched:
        out = Interrupting()
        patched.setattr(sys, "stdout", out)
        query.watch()
    assert ": ended" in out.getvalue()


@pytest.mark.slow
def test_a_view_continues_with_a_query_that_is_restarted_in_place(job: Job) -> None:
    """It has the epochs and savepoints of both runs."""
    job = job.but(processor=Count, output="k string, n long").using(SELDOM)
    job.feed.add([("a", 1)])
    with session_conf(job.spark, {PARTITIONS: "2"}):
        query = writer_of(job).start()
        try:
            query.processAllAvailable()
            await_progress(query, 0)
            view = query._view()
            assert [epoch for epoch, *_ in view.read().epochs] == [0]
            query.rescale(3)
            job.feed.add([("a", 2)])
            query.processAllAvailable()
            await_progress(query, 2)
            query.triggerSavepoint(str(job.base / "savepoints"))
            found = view.read()
        finally:
            query.stop()
    assert [epoch for epoch, *_ in found.epochs] == [0, 1, 2]  # the second one has no input
    taken = [(kind, epoch) for kind, _, _, epoch, *_ in found.checkpoints]
    assert ("savepoint", 2) in taken


CELLS = (
    """
import os, sys
from pathlib import Path
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
from pyspark.sql import SparkSession
import pyspark_ckpt as ckpt
from pyspark_ckpt.combine.aggregates import Count
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)
base = Path(BASE)
spark.createDataFrame([("a",), ("b",)], "k string").write.parquet(str(base / "in"))
stream = spark.readStream.schema("k string").parquet(str(base / "in"))
counts = ckpt.key_by(stream, "k").combine({"n": Count()}, uid="count")
query = (
    ckpt.write_stream(counts).outputMode("update").format("memory").queryName("watched")
    .option("checkpointLocation", str(base / "location")).start()
)
query.processAllAvailable()
""",
    "query",
    "query.triggerCheckpoint()",
    "query.history().plot();",
    """
import signal, threading
threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
query.watch(refresh_s=0.2)
""",
    "print('active', query.isActive)",
    "query.stop(); spark.stop()",
)


@pytest.mark.soak
@pytest.mark.own_jvm
def test_a_real_notebook_shows_them(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(each.replace("BASE", repr(str(tmp_path)))) for each in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    _, shown, checkpoint, plot, watched, active, _ = notebook.cells
    assert "watched" in shown.outputs[-1].data["text/html"]
    assert "Checkpoint 1" in checkpoint.outputs[-1].data["text/html"]
    assert any("image/png" in output.get("data", {}) for output in plot.outputs)
    (view,) = [each for each in watched.outputs if "text/html" in each.get("data", {})]
    html = view.data["text/html"]
    assert "no longer watched" in html
    assert "Epochs" in html
    assert "active True" in active.outputs[-1].text
