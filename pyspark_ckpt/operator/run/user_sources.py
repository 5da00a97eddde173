"""The source text of code that travels by value, for the lines of errors on executors.

Cloudpickle sends functions of ``__main__``, so those of scripts and notebook cells, without their
source. An executor has no file for them.
"""

from __future__ import annotations

import inspect
import linecache
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import msgspec
from pyspark import cloudpickle

MAX_SOURCE_BYTES = 500_000
"""Source text that travels with an operator at most, before it is compressed to about a fifth."""

_MAX_FUNCTIONS = 1_000


@dataclass(frozen=True, slots=True)
class UserSources:
    """Source lines by file name, compressed until an error asks for them.

    `compressed` is a deflated JSON object, and is empty if nothing travels by value.
    """

    compressed: bytes = b""

    @classmethod
    def of(cls, *roots: Any) -> UserSources:
        """Return the sources of the by-value code that some objects use; called on the driver.

        What `roots` reach by class, global name or closure is included.
        """
        texts: dict[str, str] = {}
        size = 0
        for name in _files(roots):
            text = "".join(linecache.getlines(name))
            size += len(text)
            if text and size <= MAX_SOURCE_BYTES:
                texts[name] = text
        return cls(zlib.compress(msgspec.json.encode(texts)) if texts else b"")

    def lines(self) -> dict[str, list[str]]:
        """Return the lines of each file."""
        if not self.compressed:
            return {}
        texts = msgspec.json.decode(zlib.decompress(self.compressed), type=dict[str, str])
        return {name: text.splitlines() for name, text in texts.items()}


NO_SOURCES = UserSources()


def _files(roots: Iterable[Any]) -> list[str]:
    """Return the file names of the reachable by-value code, each once, nearest first."""
    pending = list(roots)
    seen: set[int] = set()
    names: dict[str, None] = {}
    while pending and len(seen) < _MAX_FUNCTIONS:
        each = pending.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            if travels_by_value(each.__module__):
                names[each.__code__.co_filename] = None
                pending += _used_by(each)
        elif isinstance(each, type):
            for base in each.__mro__:
                if travels_by_value(base.__module__):
                    pending += [_function(member) for member in vars(base).values()]
        elif isinstance(each, list | tuple):
            pending += each
        elif travels_by_value(type(each).__module__):
            pending += [type(each), *getattr(each, "__dict__", {}).values()]
    return list(names)


def _function(member: Any) -> Any:
    """Return the function below a method, property or decorator; other objects as they are."""
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, partial):
        member = member.func
    if isinstance(member, classmethod | staticmethod | MethodType):
        member = member.__func__
    return inspect.unwrap(member) if isinstance(member, FunctionType) else member


def _used_by(function: FunctionType) -> Iterator[Any]:
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield _function(function.__globals__[name])
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a cell that is not filled yet
            yield _function(cell.cell_contents)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def travels_by_value(module: str | None) -> bool:
    """Return whether Spark ships the code of a module, rather than have executors import it."""
    registered = cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
    return module == "__main__" or module in registered
