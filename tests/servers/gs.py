"""Google's file system for Hadoop, ``gs://``, for the Spark of the tests.

The jar comes from a package of PyPI and is of Hadoop 3. Its server is that of ``gcs.py``.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.servers.installed import installed, run

_PACKAGE = "pyspark-gcs==2.2.6.1"
_MB = 1 << 20


def gs_jars() -> list[Path]:
    """Return the jar, which is downloaded once."""
    return sorted(installed("gs-2.2.6", _fill).glob("*.jar"))


def gs_conf(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for the server of an environment."""
    hadoop = {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        "fs.gs.storage.root.url": f"{environment['STORAGE_EMULATOR_HOST']}/",
        "fs.gs.storage.service.path": "storage/v1/",
        "fs.gs.project.id": "tests",
        "google.cloud.auth.service.account.enable": "false",
        "google.cloud.auth.null.enable": "true",
        # The defaults of Spark's Hadoop have units, which this connector does not read.
        "fs.gs.block.size": str(64 * _MB),
        "fs.gs.inputstream.inplace.seek.limit": str(8 * _MB),
        "fs.gs.inputstream.min.range.request.size": str(2 * _MB),
        "fs.gs.outputstream.buffer.size": str(8 * _MB),
        "fs.gs.rewrite.max.chunk.size": str(512 * _MB),
    }
    return {f"spark.hadoop.{key}": value for key, value in hadoop.items()}


def _fill(directory: Path) -> None:
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _PACKAGE], directory)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".jar"))
        (directory / Path(name).name).write_bytes(files.read(name))
    wheel.unlink()
