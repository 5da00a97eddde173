"""Check the docstrings of all public objects with numpydoc's validation; ``make lint`` runs it.

Public is what ``pyspark_ckpt``, ``pyspark_ckpt.testing`` and ``pyspark_ckpt.typing`` export, with
the methods and properties of exported classes. The checks and the exceptions to them are in
``pyproject.toml``, under ``tool.numpydoc_validation``.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from numpydoc.validate import validate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
MODULES = (
    "pyspark_ckpt",
    "pyspark_ckpt.agg",
    "pyspark_ckpt.errors",
    "pyspark_ckpt.results",
    "pyspark_ckpt.testing",
    "pyspark_ckpt.typing",
)
_NO_EXAMPLE = frozenset({"EX01"})
_NO_ARGUMENTS = frozenset({"PR01", "PR02", "EX01"})


@dataclass(frozen=True)
class PublicObject:
    """A class, function, method or property that users see.

    Parameters
    ----------
    name : str
        Full name, of the place where it is defined.
    value : object
        The object itself.
    """

    name: str
    value: Any


def public_objects() -> Iterator[PublicObject]:
    """Yield each public object once, a class before its members.

    Yields
    ------
    PublicObject
        An object with its name.
    """
    excluded = tuple(f".{name}" for name in _configuration()["exclude"])
    seen: set[int] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if not callable(value) or id(value) in seen:
                continue
            seen.add(id(value))
            # A package may have the exported name too: numpydoc gets the place of definition.
            full_name = f"{value.__module__}.{value.__qualname__}"
            yield PublicObject(full_name, value)
            if inspect.isclass(value):
                for member in _members(value):
                    found = inspect.getattr_static(value, member)
                    place = _place_of(found)
                    # Two public classes may inherit the same member.
                    if id(found) not in seen and not place.endswith(excluded):
                        seen.add(id(found))
                        yield PublicObject(place, found)


def problems(public: PublicObject) -> list[str]:
    """Return what numpydoc finds wrong with one docstring.

    Parameters
    ----------
    public : PublicObject
        The object.

    Returns
    -------
    list of str
        Each with its code, empty if the docstring is good.
    """
    checks = set(_configuration()["checks"]) - _exempt(public.value)
    found = validate(public.name)["errors"]
    return [f"{public.name}: {code} {text}" for code, text in found if code in checks]


def _exempt(value: Any) -> frozenset[str]:
    """Return the checks that do not concern an object."""
    if inspect.isclass(value) and issubclass(value, Exception | Enum):
        return _NO_ARGUMENTS  # nobody calls it
    if isinstance(value, property):
        return _NO_EXAMPLE  # its class has one
    return frozenset()


def _place_of(member: Any) -> str:
    """Return the full name of a method or property, of the class that defines it."""
    function = member.fget if isinstance(member, property) else member
    function = getattr(function, "__func__", function)  # of a classmethod
    return f"{function.__module__}.{function.__qualname__}"


def _members(cls: type) -> list[str]:
    """Return the names of methods and properties that this library gives a class, in order.

    The members of a base class come first, as its text comes before that of the class.
    """
    names = [
        name
        for base in reversed(cls.__mro__)
        if base.__module__.startswith("pyspark_ckpt")
        for name, member in vars(base).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod))
    ]
    return list(dict.fromkeys(names))


def _configuration() -> dict[str, list[str]]:
    content = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    configuration: dict[str, list[str]] = tomllib.loads(content)["tool"]["numpydoc_validation"]
    return configuration


def main() -> int:
    """Print what is wrong.

    Returns
    -------
    int
        The exit code.
    """
    found = [problem for public in public_objects() for problem in problems(public)]
    print("\n".join(found) or "All public docstrings are complete.")  # noqa: T201
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
