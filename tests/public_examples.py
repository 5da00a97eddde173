"""Runs the examples in docstrings, as doctest does, with existing names."""

from __future__ import annotations

import doctest
from collections.abc import Mapping
from typing import Any

Names = dict[str, Any]

_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def run_examples(docstring: str | None, where: str, names: Mapping[str, Any]) -> Names:
    """Run a docstring's examples; a failure shows what was expected and what came.

    Returns
    -------
    dict
        The given names, and the names that the examples defined.
    """
    globs: Names = {"__name__": "__main__", **names}  # classes travel to executors by value
    test = doctest.DocTestParser().get_doctest(docstring or "", globs, where, None, None)
    assert test.examples, f"{where} has no example"
    runner = doctest.DebugRunner(optionflags=_FLAGS)
    try:
        runner.run(test, clear_globs=False)
    except doctest.DocTestFailure as failure:
        example = failure.example
        raise AssertionError(
            f"{where}: {example.source}expected {example.want!r}, got {failure.got!r}"
        ) from None
    except doctest.UnexpectedException as failure:
        raise AssertionError(f"{where}: {failure.example.source}") from failure.exc_info[1]
    return test.globs
