"""The user's lines in an error: only these, bounded, and also of code without a file."""

from __future__ import annotations

import functools
import linecache
import math
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import types as T

from pyspark_ckpt.operator.run.user_sources import NO_SOURCES, UserSources
from pyspark_ckpt.operator.task_failure import definition, user_frames
from pyspark_ckpt.values.codec import TupleCodec
from pyspark_ckpt.values.words import shortened

CELL = "/tmp/ipykernel_1/2.py"
CELL_TEXT = """
def helper(n):
    return 1 // n

class Cell:
    def handle(self, n):
        return helper(n)
"""


def error_of(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011  # any
        call()
    return raised.value


def as_main(text: str, file: str) -> dict[str, Any]:
    """Run a text as a notebook runs a cell: in ``__main__``, known to linecache only."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), names)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return names


def test_the_library_and_pyspark_are_left_out() -> None:
    codec = TupleCodec(T.StructType().add("n", "long"), "state 'n'")

    def update() -> None:
        codec.encode(("x",))

    text = user_frames(error_of(update))
    assert text.splitlines()[-2:] == [
        f'  File "{__file__}", line {update.__code__.co_firstlineno + 1}, in update',
        '    codec.encode(("x",))',
    ]
    assert "pyspark_ckpt/operator" not in text


def test_what_the_library_alone_does_has_no_lines() -> None:
    codec = TupleCodec(T.StructType().add("n", "long"), "state 'n'")
    error = error_of(lambda: codec.encode(("x",)))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert user_frames(error) == ""


def test_a_recursion_is_cut_in_the_middle() -> None:
    def deeper(n: int) -> float:
        return math.sqrt(-1) if n == 0 else deeper(n - 1)

    text = user_frames(error_of(lambda: deeper(500)))
    assert text.count("in deeper") < 20
    assert "more frames ..." in text
    assert "math.sqrt(-1)" in text.splitlines()[-1]


def test_causes_are_shown_too() -> None:
    def wrapped() -> None:
        try:
            {}["no"]
        except KeyError as exc:
            raise ValueError("outer") from exc

    lines = user_frames(error_of(wrapped)).splitlines()
    assert "  caused by KeyError: 'no'" in lines
    assert '    {}["no"]' in lines


def test_a_lambda_has_a_line() -> None:
    assert "in <lambda>" in user_frames(error_of(lambda: 1 // 0))


def test_a_cell_travels_with_its_source() -> None:
    """An executor has neither the file nor the driver's linecache."""
    names = as_main(CELL_TEXT, CELL)
    sources = UserSources.of(names["Cell"]())
    sources = cloudpickle.loads(cloudpickle.dumps(sources))  # type: ignore[no-untyped-call]
    del linecache.cache[CELL]
    error = error_of(lambda: names["Cell"]().handle(0))
    assert user_frames(error, sources.lines()).splitlines()[-4:] == [
        f'  File "{CELL}", line 7, in handle',
        "    return helper(n)",
        f'  File "{CELL}", line 3, in helper',
        "    return 1 // n",
    ]
    assert "line 3, in helper" in user_frames(error)  # the place is there without the text
    where = definition(names["Cell"](), "handle", sources.lines())
    assert where == f'\n  File "{CELL}", line 6, in handle\n    def handle(self, n):'


def test_functions_that_only_globals_and_closures_name_travel_too() -> None:
    first, second = "/tmp/ipykernel_1/first.py", "/tmp/ipykernel_1/second.py"
    one = as_main("def inner(n):\n    return 1 // n\n", first)
    text = "def outer(f):\n    def call(n):\n        return f(n)\n    return call\n"
    outer = as_main(text, second)["outer"]
    assert set(UserSources.of(outer(one["inner"])).lines()) == {first, second}


class Hostile:
    """A missing attribute is another error, as with proxies and lazy modules."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_any_global_may_be_used() -> None:
    """Functions below methods and decorators are found, and no other object is touched."""
    file = "/tmp/ipykernel_1/third.py"
    names = as_main("def call():\n    return proxy.x, inner\n", file)
    names["proxy"] = Hostile()
    inner = as_main("class A:\n    @staticmethod\n    def f(n):\n        return n\n", CELL)
    names["inner"] = functools.partial(inner["A"].f, 1)
    assert set(UserSources.of(names["call"]).lines()) == {file, CELL}


def test_modules_that_executors_import_do_not_travel() -> None:
    assert UserSources.of(TupleCodec, len, None, 3) == NO_SOURCES
    assert NO_SOURCES.lines() == {}


def test_long_texts_are_cut() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcde", 3) == "abc... (2 more characters)"
