"""A program as a user gives it: a streaming DataFrame, or a function that builds one. Driver only.

A program that builds nothing is refused wherever one is given. It never stands for "as before".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from pyspark_ckpt.errors import CkptError, ConfigurationError
from pyspark_ckpt.sessions.connect_plan import hidden, plan_of, reads_stream
from pyspark_ckpt.sessions.session import session_of

Program = DataFrame | Callable[[], DataFrame]
"""A query, or a function that builds it."""

_WANTED = "give a streaming DataFrame, or a function without arguments that returns one"
_ITSELF = (
    "return the streaming DataFrame itself, not its writer, a started query or what key_by returns"
)


def check_program(program: object, call: str) -> None:
    """Refuse what cannot be a program, without calling it."""
    if isinstance(program, DataFrame):
        _check_streams(program, f"{call} got a DataFrame")
        return
    name = _name_of(program)
    if program is None:
        raise ConfigurationError(
            f"{call} got None for a program: {_WANTED}. A function that builds the DataFrame and "
            "does not return it gives None"
        )
    if isinstance(program, type) or not callable(program):
        kind = f"the class {name}" if isinstance(program, type) else type(program).__name__
        raise ConfigurationError(f"{call} got {kind} for a program: {_WANTED}")
    if _is_async(program):
        raise ConfigurationError(f"{call} got the async function {name} for a program: {_WANTED}")
    if required := _required_arguments(program):
        raise ConfigurationError(
            f"{call} got {name}, which requires {', '.join(required)}, and it is called without "
            f"arguments: {_WANTED}"
        )


def stream_of(program: Program, call: str) -> DataFrame:
    """Return the streaming DataFrame that a program is, or that it builds now."""
    check_program(program, call)
    if isinstance(program, DataFrame):
        return program
    made: object = program()
    name = _name_of(program)
    if not isinstance(made, DataFrame):
        if inspect.iscoroutine(made):
            made.close()  # nobody awaits it
        what = "None" if made is None else type(made).__name__
        advice = "end it with a return of the streaming DataFrame" if made is None else _ITSELF
        raise ConfigurationError(f"{call}: {name} returned {what}: {advice}")
    _check_streams(made, f"{call}: {name} returned a DataFrame")
    return made


def check_frame(
    given: object, call: str, argument: str, error: type[CkptError] = ConfigurationError
) -> None:
    """Refuse what is not a DataFrame where only a DataFrame is taken."""
    if isinstance(given, DataFrame):
        return
    what = "None" if given is None else type(given).__name__
    advice = " A function that builds it has to be called, and to return it." * (
        given is None or callable(given)
    )
    raise error(f"{call} got {what} for {argument}: give a DataFrame.{advice}")


def _check_streams(df: DataFrame, what: str) -> None:
    if not session_of(df).has_jvm:
        plan = plan_of(df)
        streams = reads_stream(plan) or bool(hidden(plan))  # else only the server knows
    else:
        streams = df.isStreaming
    if not streams:
        raise ConfigurationError(
            f"{what} that is not a stream: read its source with spark.readStream, not spark.read"
        )


def _name_of(program: object) -> str:
    """Return the name of a function, and where it is."""
    function: Any = inspect.unwrap(program) if callable(program) else program
    function = getattr(function, "func", function)  # of a partial
    name = getattr(function, "__qualname__", None) or type(function).__name__
    code = getattr(function, "__code__", None)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{name}{where}" if isinstance(program, type) else f"{name}(){where}"


def _is_async(program: Any) -> bool:
    of_object = vars(type(program)).get("__call__")
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (getattr(program, "func", program), of_object)
    )


def _required_arguments(program: Callable[..., Any]) -> list[str]:
    """Return the arguments that a function cannot be called without."""
    try:
        parameters = inspect.signature(program).parameters.values()
    except (TypeError, ValueError):  # one of C has no signature
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        each.name
        for each in parameters
        if each.default is inspect.Parameter.empty and each.kind not in variable
    ]
