"""Spark's defaults that most tests lack: Hadoop's checksums, generated code, a disk. Secrets."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("program.py")
ON_DISK = Path("/var/tmp")
SHORTCUTS = ("JAVA_TOOL_OPTIONS", "PYSPARK_SUBMIT_ARGS", "PYTEST_DEBUG_TEMPROOT")


@pytest.fixture
def on_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=ON_DISK if ON_DISK.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.soak
@pytest.mark.own_jvm
def test_a_query_with_the_defaults_of_spark(on_disk: Path) -> None:
    """Scenario 45: exact results; no file, no log and no error has a secret in it."""
    canary = f"canary-{secrets.token_hex(8)}"
    environment = {name: value for name, value in os.environ.items() if name not in SHORTCUTS}
    environment |= {"TMPDIR": str(on_disk), "AWS_SECRET_ACCESS_KEY": canary}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(on_disk), canary],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "all is well" in done.stdout.splitlines()
    assert "pyspark_ckpt" in done.stdout, "the log of the library is not there"
    assert canary not in done.stdout
    files = [path for path in on_disk.rglob("*") if path.is_file()]
    assert any(path.name.endswith(".crc") for path in files), "Spark keeps no checksums"
    assert any(path.name == "_metadata" for path in files)
    for path in files:
        assert canary.encode() not in path.read_bytes(), path
