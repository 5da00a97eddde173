"""PySpark's own tests, which each installed package has in the archive that workers import."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pyspark
import pytest

_ARCHIVE = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
_PACKAGES = (
    "pyspark.sql.tests.pandas.streaming",
    "pyspark.sql.tests.pandas",  # where PySpark 4.0 and 4.1 have them
    "pyspark.sql.tests.connect.pandas.streaming",
    "pyspark.sql.tests.connect.pandas",
)


def open_archive() -> None:
    """Make packages importable that are in the archive and not in the installed directory."""
    for name in ("pyspark.sql", "pyspark.testing"):
        package = importlib.import_module(name)
        inside = f"{_ARCHIVE}/{name.replace('.', '/')}"
        if inside not in package.__path__:
            package.__path__.append(inside)


def installed_module(name: str) -> ModuleType:
    """Return one of PySpark's test modules; skip the module that asks if this PySpark lacks it."""
    for package in _PACKAGES:
        if find_spec(package) and find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
    pytest.skip(f"PySpark {pyspark.__version__} has no {name}", allow_module_level=True)
