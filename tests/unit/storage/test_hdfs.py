"""HDFS alone: answers that get lost, writers that are killed, and what is not an address."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.storage.open import open_storage
from pyspark_ckpt.storage.servers.hdfs import HdfsStorage
from tests.servers.hdfs import Hdfs
from tests.unit.without_library import check_advice

pytestmark = pytest.mark.soak


class LosingAnswers:
    """Passes requests to a client; the answer to a rename gets lost, and it is sent again."""

    def __init__(self, client: Any, *, is_renamed: bool = True) -> None:
        self._client = client
        self._is_renamed = is_renamed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        if self._is_renamed:
            self._client.rename(source, target, overwrite=overwrite)
            self._client.rename(source, target, overwrite=overwrite)
        raise OSError(104, "Connection reset by peer")


def storage_at(url: str) -> HdfsStorage:
    storage = open_storage(url)
    assert isinstance(storage, HdfsStorage)
    return storage


def test_a_rename_whose_answer_got_lost_has_written_the_file_once(hdfs_url: str) -> None:
    storage = storage_at(hdfs_url)
    storage._client = LosingAnswers(storage._client)
    storage.write("chk-1/_metadata", [b"mine"])
    assert storage.read("chk-1/_metadata") == b"mine"
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"mine"])
    assert storage.list("chk-1") == ["_metadata"]


def test_a_rename_that_did_not_happen_is_an_error_and_leaves_no_file(hdfs_url: str) -> None:
    storage = storage_at(hdfs_url)
    storage._client = LosingAnswers(storage._client, is_renamed=False)
    with pytest.raises(OSError, match="Connection reset") as failed:
        storage.write("chk-1/_metadata", [b"mine"])
    assert not isinstance(failed.value, FileExistsError)
    assert f"{hdfs_url}/chk-1/_metadata" in str(failed.value)
    assert storage.list("chk-1") == []


def test_the_name_of_a_directory_is_taken(hdfs_url: str) -> None:
    storage = open_storage(hdfs_url)
    storage.write("shared/file/inside", [b"x"])
    with pytest.raises(FileExistsError):
        storage.write("shared/file", [b"y"])
    with pytest.raises(FileExistsError):
        storage.make_directory("shared/file")
    assert storage.list("shared") == ["file"]
    assert storage.read("shared/file/inside") == b"x"


_KILLED = """
import os, signal, sys
from pyspark_ckpt.storage.open import open_storage
def chunks():
    yield b"x" * 3_000_000
    os.kill(os.getpid(), signal.SIGKILL)
open_storage(sys.argv[1]).write("shared/file", chunks())
"""


def test_a_killed_writer_leaves_a_temporary_file_that_can_be_deleted(hdfs_url: str) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, hdfs_url], check=False)
    assert killed.returncode < 0
    storage = open_storage(hdfs_url)
    assert not storage.exists("shared/file")
    (left,) = storage.list("shared")
    assert left.startswith(".file.")
    assert left.endswith(".tmp")
    storage.write("shared/file", [b"again"])
    storage.delete([f"shared/{left}"])
    assert storage.list("shared") == ["file"]
    assert storage.read("shared/file") == b"again"


def test_a_data_node_that_is_killed_during_a_write_leaves_no_file(
    hdfs: Hdfs, hdfs_url: str
) -> None:
    """The node comes back: what was written before is whole, and the name is still unused."""
    storage = open_storage(hdfs_url)
    before = storage.write("shared/before", [b"x" * 2_000_000])

    def chunks() -> Iterator[bytes]:
        yield b"y" * 1_000_000
        hdfs.kill("datanode")
        yield b"y" * 1_000_000

    try:
        with pytest.raises(OSError, match=f"{hdfs_url}/shared/file") as failed:
            storage.write("shared/file", chunks())
        assert not isinstance(failed.value, FileExistsError)
        assert not storage.exists("shared/file")
        with pytest.raises(OSError):  # noqa: PT011  # the client's words differ with the moment
            storage.read("shared/before")
    finally:
        hdfs.start()
    with storage.open_verified(before) as file:
        assert file.read() == b"x" * 2_000_000
    written = storage.write("shared/file", [b"z" * 2_000_000])
    with storage.open_verified(written) as file:
        assert file.read() == b"z" * 2_000_000


def test_a_name_node_that_is_killed_after_a_write_still_has_the_file(
    hdfs: Hdfs, hdfs_url: str
) -> None:
    storage = open_storage(hdfs_url)
    reference = storage.write("chk-1/_metadata", [b"mine"])
    hdfs.kill("namenode")
    hdfs.start()
    with storage.open_verified(reference) as file:
        assert file.read() == b"mine"
    with pytest.raises(FileExistsError):
        storage.write("chk-1/_metadata", [b"other"])


def test_a_path_with_a_colon_come_back_as_they_were(hdfs: Hdfs, hdfs_url: str) -> None:
    storage = open_storage(f"{hdfs_url}/a:b")
    storage.write("c:d/e:f", [b"x"])
    assert storage.list() == ["c:d"]
    assert storage.child("c:d").url == f"{hdfs_url}/a:b/c:d"
    assert open_storage(storage.child("c:d").url).read("e:f") == b"x"
    assert open_storage(hdfs.url).exists(hdfs_url.rpartition("/")[2])


@pytest.mark.parametrize("url", ["hdfs:///x", "hdfs:/x", "hdfs://me:secret@host:1/x", "hdfs://"])
def test_what_names_no_name_node_is_refused_and_no_secret_is_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no NameNode") as refused:
        open_storage(url)
    assert "secret" not in str(refused.value)


def test_a_name_service_comes_from_hadoops_own_configuration(
    hdfs: Hdfs, hdfs_url: str, tmp_path: Path
) -> None:
    settings = {
        "dfs.ha.namenodes.service": "first",
        "dfs.namenode.rpc-address.service.first": hdfs.url.removeprefix("hdfs://"),
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{properties}</configuration>")
    (tmp_path / "core-site.xml").write_text("<configuration></configuration>")
    url = hdfs_url.replace(hdfs.url, "hdfs://service")
    program = (
        "import sys\nfrom pyspark_ckpt.storage.open import open_storage\n"
        "open_storage(sys.argv[1]).write('file', [b'x'])"
    )
    environment = os.environ | {"HADOOP_CONF_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program, url], check=True, env=environment)
    assert open_storage(hdfs_url).read("file") == b"x"
    with pytest.raises(ConfigurationError, match=r"hdfs://service.*HADOOP_CONF_DIR"):
        open_storage(url)


def test_hdfs_without_its_library_says_what_to_install() -> None:
    check_advice(
        "hdfs_native",
        "hdfs",
        "from pyspark_ckpt.storage.open import open_storage",
        "open_storage('hdfs://host:1/x')",
    )
