"""An environment with another PySpark and this library, for clients and servers of that version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.servers.installed import installed, run

_ROOT = Path(__file__).parents[2]
_OF_CONNECT = (
    "grpcio>=1.67",
    "grpcio-status>=1.67",
    "googleapis-common-protos>=1.65",
    "protobuf>=5.28",
    "zstandard>=0.25",
)


def python_with(version: str) -> Path:
    """Return the Python of an environment with a version of PySpark; skip if it cannot be had."""
    return installed(f"pyspark-{version}", lambda place: _fill(place, version)) / "bin" / "python"


def pyspark_home(python: Path | str) -> Path:
    """Return the directory of an environment's PySpark."""
    code = "import pyspark; print(*pyspark.__path__)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def _fill(place: Path, version: str) -> None:
    run([sys.executable, "-m", "venv", "--without-pip", str(place)], place)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install"]
    own = ("--editable", str(_ROOT))
    run([*pip, "--quiet", *own, f"pyspark=={version}", *_OF_CONNECT], place)
