"""Rules for imports that no import contract in `pyproject.toml` can state."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("pyspark_ckpt", "state_backends")
    for path in sorted((ROOT / package).rglob("*.py"))
}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """Return every module that is imported anywhere in a file, with the name taken from it."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def importers(*names: str) -> set[str]:
    """Return the modules that import one of `names`, or anything below it."""
    return {
        module
        for module, path in MODULES.items()
        for imported, name in imports(path)
        if {imported.split(".")[0], f"{imported}.{name}", imported} & set(names)
    }


def output_of(program: str) -> str:
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


def test_both_packages_are_found() -> None:
    assert {"pyspark_ckpt", "pyspark_ckpt.storage.open", "state_backends.heap"} <= set(MODULES)


def test_the_reader_of_imports_sees_every_form(tmp_path: Path) -> None:
    source = "import a.b\nfrom c.d import e as f\ndef g():\n    import h\n    from i import _j\n"
    (tmp_path / "some.py").write_text(source)
    assert set(imports(tmp_path / "some.py")) == {
        ("a.b", None), ("c.d", "e"), ("h", None), ("i", "_j"),
    }  # fmt: skip


def test_backends_can_be_used_without_spark() -> None:
    program = (
        "import sys, state_backends, state_backends.heap, state_backends.rocksdb\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pyspark_ckpt', 'py4j')])"
    )
    assert output_of(program) == "[]"


def test_a_worker_loads_only_the_native_library_it_uses() -> None:
    program = "import sys, state_backends\nprint({'lmdb', 'rocksdict'} & set(sys.modules))"
    assert output_of(program) == "set()"


@pytest.mark.parametrize(
    ("library", "module"),
    [("rocksdict", "state_backends.rocksdb"), ("lmdb", "state_backends.heap")],
)
def test_a_native_library_is_imported_in_one_module(library: str, module: str) -> None:
    assert importers(library) == {module}


def test_no_modules_depend_on_each_other() -> None:
    """They do not even import each other's types."""
    names = {
        module: {f"{imported}.{name}" if f"{imported}.{name}" in MODULES else imported
                 for imported, name in imports(path)} & set(MODULES)
        for module, path in MODULES.items()
    }  # fmt: skip
    assert len(list(TopologicalSorter(names).static_order())) == len(MODULES)


def test_nothing_is_pickled_but_the_copy_of_the_processor_in_memory() -> None:
    assert importers(
        "pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib",
        "pyspark.cloudpickle", "pyspark.serializers",
    ) == {
        # Takes a task's state from its JVM and gives it back, as PySpark's worker does.
        "pyspark_ckpt.operator.handover.worker",
        "pyspark_ckpt.operator.plan.declared",
        "pyspark_ckpt.operator.run.user_sources",  # asks which modules travel by value
    }  # fmt: skip


def test_nothing_is_imported_behind_the_back_of_these_tests() -> None:
    """The only exception is the user's own program, which the command ``plan`` gets."""
    assert not importers("importlib", "imp")
    assert importers("runpy") == {"pyspark_ckpt.cli.spark_commands"}
    for module, path in MODULES.items():
        calls = {
            node.func.id
            for node in nodes(path)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"__import__", "eval", "exec", "compile"}, module


@pytest.mark.parametrize("module", MODULES)
def test_a_module_takes_no_private_name_from_another(module: str) -> None:
    private = [
        f"{imported}.{name}" if name else imported
        for imported, name in imports(MODULES[module])
        if imported != "__future__"
        and any(_is_private(part) for part in (*imported.split("."), name or ""))
    ]
    assert private == []


def test_only_storage_makes_things_durable() -> None:
    def calls(path: Path) -> set[str]:
        return {node.attr for node in nodes(path) if isinstance(node, ast.Attribute)}

    durable = {name for name, path in MODULES.items() if {"fsync", "link"} & calls(path)}
    assert durable == {"pyspark_ckpt.storage.local", "pyspark_ckpt.storage.mount"}


def test_only_spark_and_three_modules_below_it_reach_into_the_jvm() -> None:
    """Those three are listed in docs/design/house.md."""
    attributes = {"_jvm", "_jsparkSession", "_jdf", "_jsq", "_jsc", "_gateway", "_df"}

    def reaches(path: Path) -> bool:
        return (
            any(
                (isinstance(node, ast.Attribute) and node.attr in attributes)
                or (isinstance(node, ast.Constant) and str(node.value).startswith("org.apache."))
                for node in nodes(path)
            )
            and path.parent.name != "spark"
        )

    assert {name for name, path in MODULES.items() if reaches(path)} == {
        "pyspark_ckpt.operator.plan.operator",
        "pyspark_ckpt.operator.plan.streaming_row",
        "pyspark_ckpt.sessions.classic",
    }


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


BROUGHT_BY = {"py4j": "pyspark", "botocore": "s3fs", "azure": "azure_storage_blob"}
BROUGHT_BY["google"] = "google_auth"
BROUGHT_BY["opentelemetry"] = "opentelemetry_sdk"
BROUGHT_BY["IPython"] = "ipython"
BROUGHT_BY["markupsafe"] = "jinja2"
BROUGHT_BY["urllib3"] = "kubernetes"
"""Libraries that another one brings in the version that it needs."""


def test_every_import_is_of_a_declared_library() -> None:
    """Declared are those that every user installs, and those of an extra except ``dev``."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = dict(setup["options.extras_require"])
    del extras["dev"]
    lines = "\n".join([setup["options"]["install_requires"], *extras.values()])
    names = re.findall(r"^[A-Za-z0-9_-]+", lines, re.MULTILINE)
    declared = {name.replace("-", "_") for name in names}
    for module, path in MODULES.items():
        used = {imported.split(".")[0] for imported, _ in imports(path)}
        used -= {*sys.stdlib_module_names, "pyspark_ckpt", "state_backends"}
        missing = {name for name in used if BROUGHT_BY.get(name, name) not in declared}
        assert not missing, f"{module} imports {missing}, which setup.cfg does not declare"
