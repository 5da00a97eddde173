"""Storages by their URL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ckpt.errors import ConfigurationError, NotBuiltYetError, UnsafePathError
from pyspark_ckpt.storage.open import LocalStorage, open_storage
from tests.unit.without_library import check_advice


def opened(url: str) -> Path:
    storage = open_storage(url)
    assert isinstance(storage, LocalStorage)
    assert storage.url == str(storage.root)
    return storage.root


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_local_path_or_url_is_opened_and_not_created(tmp_path: Path, prefix: str) -> None:
    root = opened(f"{prefix}{tmp_path}/new dir")
    assert root == tmp_path / "new dir"
    assert not root.exists()


def test_a_path_object_is_its_path(tmp_path: Path) -> None:
    assert open_storage(tmp_path / "new").url == str(tmp_path / "new")


def test_a_relative_path_is_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert opened("savepoints") == tmp_path / "savepoints"


@pytest.mark.parametrize("name", ["a::b", "a%20b", "a b", "a#b?c", "a:b", "ä", "a*[b]"])
def test_a_path_with_unusual_characters_is_itself(tmp_path: Path, name: str) -> None:
    assert opened(f"{tmp_path}/{name}") == tmp_path / name


@pytest.mark.parametrize(
    "url",
    ["wasbs://c@a/x", "dbfs:/x", "http://h/x", "webhdfs://host/x", "simplecache::s3://bucket/x"],
)
def test_a_file_system_without_a_storage_is_refused_by_name(url: str) -> None:
    with pytest.raises(NotBuiltYetError, match=url) as refused:
        open_storage(url)
    for scheme in ("s3://", "hdfs://", "abfss://", "az://", "gs://"):
        assert scheme in str(refused.value)
    for extra in ("s3", "hdfs", "azure", "gcs"):
        assert f"pyspark_ckpt[{extra}]" in str(refused.value)


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("dbfs:/x", "/dbfs/"),
        ("wasbs://c@a.blob.core.windows.net/x", "write abfss://"),
        ("webhdfs://host/x", "write hdfs://"),
        ("gcs://bucket/x", "write gs://"),
    ],
)
def test_another_scheme_of_a_supported_storage_says_what_to_write(url: str, instead: str) -> None:
    with pytest.raises(NotBuiltYetError, match=instead):
        open_storage(url)


@pytest.mark.parametrize(
    ("url", "named_by_spark"),
    [
        ("/mnt/a b", "file:/mnt/a b"),
        ("file:///mnt/a", "file:/mnt/a"),
        ("s3://bucket/x/", "s3://bucket/x"),
        ("s3a://bucket/x/", "s3a://bucket/x"),
        ("s3a://bucket", "s3a://bucket"),
    ],
)
def test_spark_names_a_location_as_its_file_system_does(url: str, named_by_spark: str) -> None:
    """A local path alone would be one of Hadoop's default file system."""
    storage = open_storage(url)
    assert storage.hadoop_url == named_by_spark
    assert storage.child("state/0").hadoop_url == f"{named_by_spark}/state/0"
    assert storage.child("state").parent().hadoop_url == named_by_spark


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("hdfs://host:8020/a/b/", "hdfs://host:8020/a/b"),
        ("hdfs://host:8020/", "hdfs://host:8020"),
        ("memory://a", "memory://a"),
        ("memory:///a/b", "memory://a/b"),
    ],
)
def test_a_url_is_written_in_one_way(given: str, opened: str) -> None:
    assert open_storage(given).url == opened
    assert open_storage(opened).child("chk-1").url == f"{opened}/chk-1"


def test_nothing_is_above_a_bucket() -> None:
    bucket = open_storage("s3://bucket/a").parent()
    assert bucket.url == "s3://bucket"
    for top in (bucket, open_storage("memory://a")):
        with pytest.raises(UnsafePathError, match="no directory above"):
            top.parent()


@pytest.mark.parametrize(
    "url", ["s3://bucket/a/../b", "s3://bucket/..", "memory://..", "memory://"]
)
def test_a_url_does_not_step_upwards(url: str) -> None:
    with pytest.raises(UnsafePathError):
        open_storage(url)


@pytest.mark.parametrize("url", ["s3:///x", "s3://Upper/x", "s3://key:secret@bucket/x", "s3://"])
def test_what_is_no_bucket_is_refused_and_no_secret_is_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a bucket's name") as refused:
        open_storage(url)
    assert "secret" not in str(refused.value)


def test_importing_the_library_imports_no_storage_but_the_local_one() -> None:
    # In this process it would not show, because the tests' conftest imports fsspec.
    program = (
        "import sys, pyspark_ckpt\n"
        "from pyspark_ckpt.storage.open import open_storage\n"
        "open_storage('/a')\n"
        "print(*(name for name in sys.modules if name.split('.')[0] in "
        "('fsspec', 's3fs', 'botocore', 'aiobotocore', 'kazoo', 'hdfs_native', 'azure', 'google', "
        "'requests')))"
    )
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert loaded == []


def test_s3_without_its_library_says_what_to_install() -> None:
    check_advice(
        "s3fs",
        "s3",
        "from pyspark_ckpt.storage.open import open_storage",
        "open_storage('s3://bucket/x')",
    )
