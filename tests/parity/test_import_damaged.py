"""State that is missing or damaged is refused by name: an import of the rest would look whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_ckpt as ckpt
from pyspark_ckpt.importing.stopped_query import check_operators
from tests.by_value import pickled_by_value
from tests.parity import importing, operations
from tests.parity.importing import Continued
from tests.parity.operations import Operations, script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value() -> Iterator[None]:
    with pickled_by_value(importing, operations):
        yield


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Continued:
    """A stopped query of Spark with several partitions of state."""
    base = tmp_path_factory.mktemp("whole")
    program = Continued(spark, base, operations.INPUT, Operations, operations.OUTPUT)
    program.feed.add([row for key in "abcdefgh" for row in script(key, ("value.update", 1, "v"))])
    assert program.run_native()
    return program


@pytest.fixture
def damaged(whole: Continued, tmp_path: Path) -> Continued:
    """A copy of it."""
    program = replace(whole, base=tmp_path)
    assert isinstance(program.native, Path)
    shutil.copytree(whole.native, program.native)
    return program


def state_of(program: Continued) -> Path:
    return Path(str(program.native)) / "state" / "0"


def partitions_of(program: Continued) -> list[int]:
    return sorted(int(each.name) for each in state_of(program).iterdir() if each.name.isdecimal())


def refused(program: Continued) -> str:
    with pytest.raises(ckpt.errors.CorruptFileError) as caught:
        program.imported()
    assert not list(Path(program.imports).glob("savepoint-*"))
    message = str(caught.value)
    assert str(program.native) in message
    assert "clear" not in message
    assert "new checkpoint location" not in message
    assert "Bring back what is missing" in message
    return message


@pytest.mark.parametrize("which", [0, -1])
def test_a_missing_partition(damaged: Continued, which: int) -> None:
    """Spark takes the directories that are there for all there were."""
    partitions = partitions_of(damaged)
    assert len(partitions) > 1
    lost = partitions[which]
    shutil.rmtree(state_of(damaged) / str(lost))
    found = f"operator 0 (transformWithStateInPySparkExec): the state of partition {lost} of"
    assert f"{found} {len(partitions)} is missing" in refused(damaged)


@pytest.mark.slow
def test_a_partition_without_its_files(damaged: Continued) -> None:
    last = state_of(damaged) / str(partitions_of(damaged)[-1])
    for file in [path for path in last.rglob("*") if path.is_file()]:
        file.unlink()
    message = refused(damaged)
    assert "operator 0 (transformWithStateInPySparkExec), as operator 'op'" in message
    assert "CANNOT_READ_STREAMING_STATE_FILE" in message
    assert f"{last}/" in message


@pytest.mark.slow
def test_a_damaged_file(damaged: Continued) -> None:
    """Spark's text says nothing but that there was an error; the cause says what it was."""
    for file in (state_of(damaged) / "0").glob("*.zip"):
        file.write_bytes(b"junk")
    assert "Checksum error" in refused(damaged)


@pytest.mark.slow
def test_a_path_that_spark_s_reader_does_not_find(damaged: Continued, tmp_path: Path) -> None:
    """Spark's own error says that no epoch was committed there."""
    native, damaged.native = damaged.native, tmp_path / "with space"
    Path(str(native)).rename(damaged.native)
    found = r"with space' has ' ': .* copy or rename the location of the stopped query to a path"
    with pytest.raises(ckpt.errors.ConfigurationError, match=found):
        damaged.imported()
    damaged.native = Path(damaged.native.rename(tmp_path / "without"))
    assert ckpt.location(damaged.imported().path).verify()


@pytest.mark.parametrize("content", [None, b"junk"])
def test_spark_s_description_of_the_state(damaged: Continued, content: bytes | None) -> None:
    for file in [path for path in (state_of(damaged) / "_metadata").rglob("*") if path.is_file()]:
        file.unlink() if content is None or file.suffix == ".crc" else file.write_bytes(content)
    assert "Spark cannot read which state it has" in refused(damaged)


def test_a_missing_operator() -> None:
    """With a real one in ``test_import_several.py``."""
    check_operators("location", {0, 1, 2}, {"operators=": [0, 1]})
    found = r"location: the state of operator 0, 2 is missing, Spark finds only that of 1, 3: "
    with pytest.raises(ckpt.errors.CorruptFileError, match=found):
        check_operators("location", {3, 1}, {"operators=": [1]})


def test_a_missing_last_operator(damaged: Continued) -> None:
    """It leaves no gap in the ids: what else knows of it is asked."""
    only = r"the state of operator 1 is missing, Spark finds only that of 0 \(more have "
    processors = [ckpt.ImportedOperator(Operations(), uid) for uid in ("op", "lost")]
    with pytest.raises(ckpt.errors.CorruptFileError, match=only + r"operators=\)"):
        damaged.imported(processor=None, uid=None, operators=dict(enumerate(processors)))

    keyed = ckpt.key_by(damaged.plan(), "k")
    query = damaged.made(keyed, uid="other")
    with pytest.raises(ckpt.errors.CorruptFileError, match=only + r"query=\)"):
        damaged.imported(query=query)
    commit = max((Path(str(damaged.native)) / "commits").glob("[0-9]*"))
    commit.with_name(f".{commit.name}.crc").unlink()
    ids = '{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"]],"1":[["b"]]}}'
    commit.write_text(f"v2\n{ids}")  # as with the state store's checkpoint format 2
    assert "(more have the commit of epoch 0)" in refused(damaged)


@pytest.mark.parametrize("lost", ["_metadata", "_metadata/v2"])
def test_spark_s_description_of_the_last_operator(damaged: Continued, lost: str) -> None:
    """Spark's reader then finds no operator at all."""
    shutil.copytree(state_of(damaged), state_of(damaged).with_name("1"))
    shutil.rmtree(state_of(damaged).with_name("1") / lost)
    assert "is missing, Spark finds only that of" in refused(damaged)
