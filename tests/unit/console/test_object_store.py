"""The console reads an object store as it reads a disk."""

from __future__ import annotations

import re

import msgspec
import pytest

from pyspark_ckpt.console.server import make_app
from pyspark_ckpt.formats.metadata import CheckpointMetadata
from pyspark_ckpt.formats.modes import CheckpointKind
from pyspark_ckpt.history.run_log import EpochRecord, RunEnded, RunLog, RunNote, RunStarted
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.stores.directory import CompletedCheckpoints

KEY = '{"type":"struct","fields":[{"name":"k","type":"string","nullable":true,"metadata":{}}]}'
LOCAL = "http://127.0.0.1:8270"


@pytest.mark.soak
def test_pages_of_queries_in_a_bucket(s3_url: str, snapshot: CheckpointMetadata) -> None:
    operators = tuple(
        msgspec.structs.replace(operator, key_schema=KEY, handles=())
        for operator in snapshot.operators
    )
    root = open_storage(s3_url)
    for number, name in enumerate(("first", "second"), 1):
        checkpoints = root.child(f"{name}/pyspark_ckpt")
        metadata = msgspec.structs.replace(
            snapshot, kind=CheckpointKind.CHECKPOINT, checkpoint_id=number, root="..",
            operators=operators, query_id=name, query_name=name,
        )  # fmt: skip
        CompletedCheckpoints(checkpoints).add(number, metadata)
        log = RunLog(checkpoints)
        epoch = EpochRecord(epoch=41, began_at_ms=1, duration_ms=2, rows=3)
        log.write(RunStarted(run_id="r", at_ms=1, query_id=name, query_name=name))
        log.write(RunNote(run_id="r", at_ms=2, epochs=(epoch,)))
        log.write(RunEnded(run_id="r", at_ms=3, error="the reason", error_kind="ProcessorError"))
    client = make_app(root).test_client()
    start = client.get("/", base_url=LOCAL).text
    keys = set(re.findall(r"/q/([0-9a-f]{16})/", start))
    assert len(keys) == 2
    assert start.count("the reason") == 2
    for key in keys:
        page = client.get(f"/q/{key}/", base_url=LOCAL).text
        assert 'id="epoch-41"' in page
        (number,) = set(re.findall(r"/chk/(\d+)/", page))
        for tab in (f"chk/{number}/", "state", "settings", "plan", "files"):
            assert client.get(f"/q/{key}/{tab}", base_url=LOCAL).status_code == 200, tab
