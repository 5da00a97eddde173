"""Fingerprints are equal for equal code and schemas, and differ otherwise."""

from __future__ import annotations

from typing import Any

from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.operator.descriptor import code_fingerprint, processor_name, schema_fingerprint


class Base:
    def step(self) -> int:
        return 1


class Same(Base):
    def run(self) -> int:
        return self.step()


def made(source: str) -> Any:
    """An instance of a class without a source file."""
    names: dict[str, Any] = {"__name__": "console"}
    exec(source, names)
    return names["P"]()


def test_code() -> None:
    assert code_fingerprint(Same()) == code_fingerprint(Same())
    assert code_fingerprint(Same()) != code_fingerprint(Base())
    assert processor_name(Same()).endswith("test_fingerprint.Same")


def test_code_without_source() -> None:
    one, same, other, inner = (
        made(f"class P:\n  def f(self):\n    {body}\n")
        for body in ("return 1", "return 1", "return 2", "return [x for x in (3,)]")
    )
    assert code_fingerprint(one) == code_fingerprint(same)
    prints = {code_fingerprint(each) for each in (one, other, inner)}
    assert len(prints) == 3


def test_schemas() -> None:
    states = [StateDescriptor("a", "value", "{}"), StateDescriptor("b", "list", "{}")]
    same = schema_fingerprint("{}", states)
    assert same == schema_fingerprint("{}", states[::-1])
    assert same != schema_fingerprint("{1}", states)
    assert same != schema_fingerprint("{}", states[:1])
    assert same != schema_fingerprint("{}", [states[0], StateDescriptor("b", "value", "{}")])
