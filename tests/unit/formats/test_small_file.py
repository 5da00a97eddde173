"""Small files of a location: a large one of such a name is refused, and not read whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.layout import HISTORY, id_mark_path
from pyspark_ckpt.formats.location_files import read_small_file
from pyspark_ckpt.history.log import HistoryLog
from pyspark_ckpt.history.run_log import RUNS, RecordedRuns
from pyspark_ckpt.storage.local import LocalStorage
from pyspark_ckpt.stores.directory import IdMarks
from pyspark_ckpt.stores.reader_pins import pin_name, pinned_files


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def make_large(storage: LocalStorage, relative: str) -> None:
    path = storage.path(relative)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 1 << 42)  # sparse; nobody has the memory to read it


def test_a_large_file_was_not_written_by_the_library(storage: LocalStorage) -> None:
    make_large(storage, "_owner")
    with pytest.raises(CorruptFileError, match="_owner") as caught:
        read_small_file(storage, "_owner", dict[str, Any], "the owner", "restore")
    assert "the owner" in str(caught.value)


def test_large_records_are_left_out(storage: LocalStorage) -> None:
    make_large(storage, f"{HISTORY}/{1:018}-{1:015}-00000000.json")
    make_large(storage, f"{RUNS}/{1:012}-started-00000000.json")
    assert HistoryLog(storage).entries() == []
    assert RecordedRuns(storage).starts_and_ends(2) == []


def test_a_large_mark_of_ids_is_no_number(storage: LocalStorage) -> None:
    make_large(storage, id_mark_path(1))
    with pytest.raises(CorruptFileError, match="holds no checkpoint id"):
        IdMarks(storage).read()


def test_a_large_pin_stops_what_would_delete(storage: LocalStorage) -> None:
    make_large(storage, pin_name(now_ms() + 60_000))
    with pytest.raises(CorruptFileError, match="delete it if nobody reads"):
        pinned_files(storage, now_ms())
