"""The docstrings of public objects are complete, and their examples run; here without Spark."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt import testing, typing
from pyspark_ckpt.formats.modes import TimeMode
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.table.stored_keys import encode_key_group
from pyspark_ckpt.operator.table.table import StateTable
from pyspark_ckpt.operator.time import EpochClock
from pyspark_ckpt.testing.schema_text import ParsedSchemas
from state_backends import open_backend
from tests.public_examples import Names, run_examples
from tools.check_docstrings import PublicObject, problems, public_objects

PUBLIC = list(public_objects())
STATES = ("pyspark_ckpt.operator.state.", "pyspark_ckpt.operator.table.")
KEYS = [(encode_key_group(1), b"ada"), (encode_key_group(2), b"bob")]


def of(prefix: str | tuple[str, ...]) -> list[PublicObject]:
    return [each for each in PUBLIC if each.name.startswith(prefix) and has_example(each)]


def has_example(public: PublicObject) -> bool:
    return ">>>" in (inspect.getdoc(public.value) or "")


def name_of(public: PublicObject) -> str:
    return public.name.removeprefix("pyspark_ckpt.")


@pytest.fixture
def live_handle(tmp_path: Path) -> Iterator[Callable[[], ProcessorHandle]]:
    """What ``init`` gets; no key is being handled."""
    with open_backend("heap", tmp_path / "state", create=True) as backend:
        table = StateTable(backend, keys=KEYS)
        clock = EpochClock(TimeMode.PROCESSING_TIME, 0, None)
        yield lambda: ProcessorHandle(table, clock, "operator 'count'", (), ParsedSchemas())
        table.close()


@pytest.mark.parametrize("public", of(STATES), ids=name_of)
def test_an_example_of_a_state_runs_for_a_key(
    public: PublicObject, live_handle: Callable[[], ProcessorHandle]
) -> None:
    """`handle` is what ``init`` gets, `keys` what ``handleInputBatch`` gets."""
    handle = live_handle()
    if public.name.endswith(".eachKey"):
        handle.table.current.is_many = True
    elif "BroadcastState" not in public.name:
        handle.table.enter(0)
    names: Names = {"handle": handle, "pd": pd, "keys": pd.DataFrame({"user": ["ada", "bob"]})}
    names |= {name: getattr(typing, name) for name in typing.__all__}
    if "ggregat" in public.name:
        names = run_examples(ckpt.AggregateFunction.__doc__, "AggregateFunction", names)
    run_examples(inspect.getdoc(public.value), public.name, names)


def test_the_example_of_the_type_hints_runs() -> None:
    run_examples(typing.__doc__, "typing", {})


@pytest.mark.parametrize("public", of("pyspark_ckpt.testing."), ids=name_of)
def test_an_example_of_the_harness_continues_the_one_of_its_package(public: PublicObject) -> None:
    names = run_examples(testing.__doc__, "testing", {})
    run_examples(inspect.getdoc(public.value), public.name, names)


@pytest.mark.parametrize("public", PUBLIC, ids=name_of)
def test_a_public_docstring_is_complete(public: PublicObject) -> None:
    assert problems(public) == []


def test_the_check_sees_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text('def lacking(path):\n    """Do it."""\n    return path\n')
    monkeypatch.syspath_prepend(tmp_path)
    __import__("lacking")
    found = problems(PublicObject("lacking.lacking", sys.modules["lacking"].lacking))
    assert {problem.split()[1] for problem in found} == {"PR01", "RT01", "EX01"}
