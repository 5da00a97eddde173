"""A client of Spark Connect takes paths as the server does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connect.conftest import RunClient

PROGRAM = Path(__file__).with_name("paths_program.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_urls_without_an_authority(connect_url: str, tmp_path: Path, run_client: RunClient) -> None:
    """None of them is a directory of the client, whatever their scheme."""
    printed = run_client(PROGRAM, connect_url, tmp_path)
    local, opened, on_hdfs, made = printed.splitlines()
    same = ["dbfs:/a", "s3:/b/a", "hdfs://other:8020/a", "file:/b"]
    assert local.split() == ["file:/a", "hdfs:///a", "hdfs:/a", *same]
    refused, unknown = "ConfigurationError", "NotBuiltYetError"
    assert opened.split() == ["/a", refused, unknown, refused, refused, refused, refused]
    assert on_hdfs.split() == [*["hdfs://127.0.0.1:8020/a"] * 3, *same]
    assert made == "[]"
