"""Makes golden data of the installed PySpark: ``python -m tests.golden.make_archives DIRECTORY``.

Writes one archive for each backend: a ``checkpointLocation`` with retained checkpoints, savepoints
of it in both formats, the next input, and what the query must then emit. An archive that exists is
left alone.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.golden import model as golden_model
from tests.golden import program
from tests.golden.archives import pack
from tests.golden.comparing import check
from tests.golden.continuing import write_input
from tests.golden.model import Model
from tests.golden.program import Sink
from tests.golden.session import golden_session
from tests.query.harness import BACKEND, INLINE, INTERVAL
from tests.query.stored import handles_of

SOON = {
    "spark.ckpt.internal.state.changelog.materialize.min-size": "0b",
    "spark.ckpt.internal.state.changelog.materialize.max-segments": "1",
}
"""So that a handle has a base snapshot and segments after a few epochs."""


def main(target: Path) -> None:
    cloudpickle.register_pickle_by_value(program)
    wanted = {
        backend: target / f"pyspark-{pyspark.__version__}-{backend}.tar.xz"
        for backend in ("rocksdb", "heap")
    }
    missing = {backend: path for backend, path in wanted.items() if not path.exists()}
    if not missing:
        return
    with tempfile.TemporaryDirectory() as directory:
        spark = golden_session(directory)
        for backend, path in missing.items():
            made = Path(directory) / f"made-{backend}"
            base = Path(directory) / f"run-{backend}"
            make_whole(spark, base, backend, made / f"whole-{backend}")
            (made / "expected.json").write_text(json.dumps(expected(), indent=0) + "\n")
            pack(made, path)
            print(f"{path.name}: {path.stat().st_size} bytes")
        spark.stop()


def make_whole(spark: SparkSession, base: Path, backend: str, target: Path) -> None:
    """Run and stop a query of three operators with every kind of state; save its last epoch."""
    for number in golden_model.GOLDEN_EPOCHS:
        write_input(base, number, golden_model.rows_of(number), golden_model.RULES[number])
    sink, options = Sink(), {BACKEND: backend, INLINE: "200b", INTERVAL: "100ms", **SOON}
    for name, kind in (("native", "NATIVE"), ("canonical", "CANONICAL")):
        location = base / "location"
        writer = program.writer(spark, base, location, sink, options)
        query = writer.start()
        query.processAllAvailable()
        savepoint = query.triggerSavepoint(str(base / "savepoints"), kind).path
        query.stop()
        assert query.exception() is None
        shutil.copytree(savepoint, target / name)
    check(sink, golden_model.run(golden_model.GOLDEN_EPOCHS, Model(2)).told, {})
    handles = handles_of(target / "native", "everything")
    assert all(handle.base is not None and handle.segments for handle in handles)
    shutil.copytree(base / "location", target / "location")


def expected() -> dict[str, Any]:
    """Return the next input and what is emitted then, with 2 subtasks as before and with 3."""
    later = {
        str(number): {"rows": golden_model.rows_of(number), "rules": golden_model.RULES[number]}
        for number in golden_model.LATER_EPOCHS
    }
    before = golden_model.run(golden_model.GOLDEN_EPOCHS, Model(2))
    dealt = [v for number in golden_model.GOLDEN_EPOCHS for _, v, _ in golden_model.rows_of(number)]
    found = {"later": later, "counted": before.counted, "dealt": dealt}
    for parallelism in (2, 3):
        model = golden_model.run(golden_model.GOLDEN_EPOCHS, Model(2))
        model.continue_at(parallelism)
        found[f"told_by_{parallelism}"] = golden_model.run(golden_model.LATER_EPOCHS, model).told
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
