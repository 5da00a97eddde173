"""Fingerprints of an operator: its code and its schemas, to tell versions of a query apart.

They are for people and for lineage. Nothing is refused for them.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import msgspec

from pyspark_ckpt.formats.handle import StateDescriptor

_NOT_THE_USERS = ("pyspark.", "pyspark_ckpt.", "abc", "typing", "builtins")


def processor_name(processor: Any) -> str:
    """Return the qualified name of a processor's class."""
    return f"{type(processor).__module__}.{type(processor).__qualname__}"


def code_fingerprint(processor: Any) -> str:
    """Return the SHA-256 of the source of a processor's class and of the user's classes it extends.

    Without its source, as in a plain console, of its compiled methods. Functions that it calls are
    not part of it.
    """
    digest = hashlib.sha256()
    for each in type(processor).__mro__:
        if each.__module__.startswith(_NOT_THE_USERS):
            continue
        try:
            digest.update(inspect.cleandoc(inspect.getsource(each)).encode())
        except (OSError, TypeError):
            for part in _compiled(each):
                digest.update(part)
    return digest.hexdigest()


def schema_fingerprint(key_schema: str, states: Sequence[StateDescriptor]) -> str:
    """Return the SHA-256 of an operator's key schema and of the kinds and schemas of its states."""
    told = [
        [state.name, state.kind, state.value_schema, state.map_key_schema]
        for state in sorted(states, key=lambda state: state.name)
    ]
    return hashlib.sha256(msgspec.json.encode([key_schema, told])).hexdigest()


def _compiled(cls: type) -> Iterator[bytes]:
    for name, member in sorted(vars(cls).items()):
        code = getattr(member, "__code__", None)
        if isinstance(code, CodeType):
            yield name.encode()
            yield from _instructions(code)


def _instructions(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        else:
            yield repr(constant).encode()
