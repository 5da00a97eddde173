"""Records of the log have the ids of what their thread does."""

from __future__ import annotations

import json
import logging

import pytest

from pyspark_ckpt.checkpoint.time_limit import CallThread
from pyspark_ckpt.log_fields import (
    JsonLogFormatter,
    fields_of,
    keep_fields,
    library_logger,
    log_fields,
)

logger = library_logger("pyspark_ckpt.test")


def test_fields_are_nested_and_end(caplog: pytest.LogCaptureFixture) -> None:
    with log_fields(query="q"):
        with log_fields(checkpoint=3, epoch=7):
            logger.warning("inside")
        logger.warning("outside")
    logger.warning("after")
    found = [
        (each.ckpt_query, each.ckpt_checkpoint, each.ckpt_subtask)  # type: ignore[attr-defined]
        for each in caplog.records
    ]
    assert found == [("q", 3, None), ("q", None, None), (None, None, None)]


def test_a_call_in_another_thread_has_the_fields_of_its_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    thread = CallThread("test")
    with log_fields(query="q", epoch=1):
        first = thread.submit(lambda: logger.warning("first"))
    second = thread.submit(lambda: logger.warning("second"))
    first.result()
    second.result()
    thread.close()
    assert [each.ckpt_epoch for each in caplog.records] == [1, None]  # type: ignore[attr-defined]


def test_an_error_takes_fields_along() -> None:
    error = ValueError("no")
    assert fields_of(error) == {}
    with log_fields(checkpoint=3):
        keep_fields(error)
    assert fields_of(error) == {"checkpoint": 3}


def test_json_is_one_line_with_known_ids_and_the_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with log_fields(query="q", operator="count", subtask=0):
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logger.exception("failed with %s", "ümlaut\n")
    (record,) = caplog.records
    text = JsonLogFormatter().format(record)
    line = json.loads(text)
    assert "\n" not in text
    assert (line["query"], line["operator"], line["subtask"]) == ("q", "count", 0)
    assert "checkpoint" not in line
    assert line["message"] == "failed with ümlaut\n"
    assert line["error"].endswith("ValueError: two\nlines")
    other = logging.makeLogRecord({"msg": "of another library"})
    assert json.loads(JsonLogFormatter().format(other))["message"] == "of another library"
