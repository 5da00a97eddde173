"""The console's costs: how long pages take with many checkpoints.

``python -m benchmarks.console [CHECKPOINTS]`` makes a location with that many retained checkpoints
(10,000 by default) and their records, and measures each page, the first time and again. It checks
that each page shows what it should.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine.properties import describe_host
from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.formats.handle import Handle, Segment
from pyspark_ckpt.formats.metadata import CheckpointMetadata, OperatorMetadata
from pyspark_ckpt.formats.metadata_file import encode_metadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.run_log import (
    KEPT_NOTES,
    RUNS,
    CheckpointRecord,
    EpochRecord,
    RunNote,
    RunStarted,
    encode_run_record,
    run_record_name,
)
from pyspark_ckpt.storage.open import LocalStorage

KEY = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
SUBTASKS = 8
QUERY = "3f2a10aa-0000-0000-0000-000000000000"


def metadata(number: int) -> CheckpointMetadata:
    """Return a checkpoint of eight subtasks."""
    handles = tuple(
        Handle(
            query_id=QUERY, uid="count", subtask=subtask, parallelism=SUBTASKS,
            max_parallelism=128, epoch=number, key_schema=KEY,
            segments=(Segment(f"{number}-x", number, 1, 100, inline=b"x" * 100),),
        )
        for subtask in range(SUBTASKS)
    )  # fmt: skip
    operator = OperatorMetadata(
        operator_id=0, uid="count", parallelism=SUBTASKS, max_parallelism=128, key_schema=KEY,
        backend="rocksdb", handles=handles,
    )  # fmt: skip
    return CheckpointMetadata(
        checkpoint_id=number, kind=CheckpointKind.CHECKPOINT, root="..", epoch=number,
        query_id=QUERY, query_name="many", parent=None, spark_version="4.0.0",
        library_version="0.1.0", triggered_at_ms=number * 1000, completed_at_ms=number * 1000 + 50,
        watermark_ms=0, offsets_entry='v1\n{"batchTimestampMs":1}\n{"logOffset":1}',
        commits_entry="v1\n{}", source_logs=(), operators=(operator,),
    )  # fmt: skip


def fill(directory: Path, checkpoints: int) -> None:
    """Write the checkpoints, and as many notes as a query keeps."""
    for number in range(1, checkpoints + 1):
        place = directory / f"chk-{number}"
        place.mkdir(parents=True)
        (place / "_author").write_bytes(b"a")
        (place / "_metadata").write_bytes(encode_metadata(metadata(number)))
    runs = directory / RUNS
    runs.mkdir(parents=True)
    start = RunStarted(run_id="r", at_ms=1, query_id=QUERY, query_name="many")
    (runs / run_record_name(1, start)).write_bytes(encode_run_record(start))
    for number in range(2, KEPT_NOTES):
        epochs = tuple(
            EpochRecord(
                epoch=20 * number + n, began_at_ms=1000 * n, duration_ms=900, rows=1,
                phases_ms={"addBatch": 800},
            )
            for n in range(20)
        )  # fmt: skip
        done = CheckpointRecord(
            checkpoint_id=number, epoch=number, triggered_at_ms=1, duration_ms=1, size_bytes=1
        )
        note = RunNote(run_id="r", at_ms=number, epochs=epochs, checkpoints=(done,))
        (runs / run_record_name(number, note)).write_bytes(encode_run_record(note))


def main() -> None:
    """Measure each page twice."""
    checkpoints = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        fill(Path(directory) / "location" / "pyspark_ckpt", checkpoints)
        client = make_app(LocalStorage(Path(directory))).test_client()
        base = "http://127.0.0.1"
        start = client.get("/", base_url=base).text
        (key,) = set(re.findall(r"/q/([0-9a-f]{16})/", start))
        client = make_app(LocalStorage(Path(directory))).test_client()
        newest = f"chk-{checkpoints}"
        pages = {"/": newest, f"/q/{key}/": newest, f"/q/{key}/chk/{checkpoints}/": "count",
                 f"/q/{key}/state": "State of many", f"/q/{key}/settings": "Settings of many",
                 f"/q/{key}/plan": newest, f"/q/{key}/files": "Data files"}  # fmt: skip
        for address, shown in pages.items():
            took = []
            for _ in range(2):
                began = time.monotonic()
                answer = client.get(address, base_url=base)
                took.append(time.monotonic() - began)
                assert answer.status_code == 200, answer.text
                assert shown in answer.text, address
            seconds[address.replace(key, "KEY")] = took
    report = {"checkpoints": checkpoints, "seconds": seconds, "machine": describe_host()}
    path = Path(__file__).with_name("results") / "console_pages"
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    path.with_suffix(".md").write_text(_markdown(report))
    print(_markdown(report))


def _markdown(report: dict[str, Any]) -> str:
    rows = "".join(
        f"| `{address}` | {first:.2f} s | {second:.2f} s |\n"
        for address, (first, second) in report["seconds"].items()
    )
    machine = "".join(f"* {name}: {value}\n" for name, value in report["machine"].items())
    return (
        f"# Pages of the console with {report['checkpoints']:,} checkpoints\n\n"
        f"| page | first time | again |\n|---|---|---|\n{rows}\n{machine}"
    )


if __name__ == "__main__":
    main()
