"""What the documentation tells a newcomer to do works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jupyter_client.manager import KernelManager
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def readme_examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_readme_example_runs(spark: SparkSession, tmp_path: Path) -> None:
    """The code block over a stream of three events, with its directories below a temporary one."""
    example = readme_examples()[0]
    (tmp_path / "events").mkdir()
    table = pa.table({"user": ["ada", "ada", "bob"]})
    pq.write_table(table, tmp_path / "events" / "1.parquet")
    events = spark.readStream.schema("user string").parquet(str(tmp_path / "events"))
    source = re.sub(r'"([a-z/]+/)"', rf'"{tmp_path}/\1"', example)
    names: dict[str, object] = {"events": events}
    exec(compile(source, "README.md", "exec"), names)
    names["query"].stop()
    names["fork"].stop()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.user, row.n) for row in rows) == [("ada", 2), ("bob", 1)]
    assert names["savepoint"].epoch == 0
    assert Path(names["savepoint"].path).parent == tmp_path / "savepoints"


def test_the_readme_example_of_a_test_passes() -> None:
    """The second code block, after the processor of the first; its assertions are the test."""
    query, test = readme_examples()
    processor, _, _ = query.partition("\n\ncounts = ")
    assert "assert" in test
    exec(compile(f"{processor}\n{test}", "README.md", "exec"), {})


@pytest.mark.parametrize("name", ["rocksdb", "heap"])
def test_conf_files_are_valid_and_set_the_backend_they_are_named_after(name: str) -> None:
    """As ``read_conf_file`` reads them."""
    values = ckpt.read_conf_file(ROOT / "conf" / f"{name}.conf")
    assert values["spark.ckpt.state.backend.type"] == name


@pytest.mark.own_jvm
def test_the_main_job_runs_on_two_weeks_of_flights(tmp_path: Path) -> None:
    """``make demo``, shortened; exits with 0 only if both results equal plain pandas."""
    finished = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--weeks", "2"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_small_outputs(notebook: Path) -> None:
    """Stored by ``make notebooks``; nbmake runs the cells, in kernels of their own."""
    assert notebook.stat().st_size < 150_000
    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    for output in outputs:
        assert output.get("name") != "stderr"
        texts = [output.get("text", ""), *output.get("data", {}).values()]
        assert not any(re.search(r"(file:|/tmp/|/home/|/Users/)", str(text)) for text in texts)


def test_notebooks_run_in_this_environment() -> None:
    """Whatever kernels the user has installed elsewhere: the one of notebooks is this Python."""
    manager = KernelManager(kernel_name="python3")
    assert manager.format_kernel_cmd()[0] == sys.executable


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
