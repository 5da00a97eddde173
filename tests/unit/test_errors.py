"""The tree of errors, as far as a handler may rely on it."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest
from pyspark.errors import (
    IllegalArgumentException,
    PySparkAssertionError,
    PySparkException,
    PySparkRuntimeError,
    PySparkValueError,
)

import pyspark_ckpt
import state_backends
from pyspark_ckpt import agg, errors, results
from pyspark_ckpt.errors import (
    CheckpointError,
    CkptError,
    FailedCheckpointsError,
    PlanError,
    StateError,
)

TREE = {
    "ConfigurationError": (CkptError, ValueError),
    "StateUseError": (StateError, PlanError, PySparkRuntimeError),
    "TimeModeError": (PlanError, PySparkRuntimeError, PySparkValueError),
    "ClockError": (PlanError, IllegalArgumentException),
    "HarnessUseError": (PlanError, PySparkAssertionError),
    "NotBuiltYetError": (CkptError, NotImplementedError),
    "UnknownEpochError": (CkptError, RuntimeError),
    "CrashedError": (CkptError, RuntimeError),
    "IncompatibleStateError": (StateError, ValueError),
    "InputRowsError": (StateError, RuntimeError),
    "StateValueError": (StateError, PySparkRuntimeError, TypeError),
    "ProcessorError": (StateError, RuntimeError),
    "QuarantineError": (StateError, RuntimeError),
    "CheckpointNotFoundError": (CheckpointError, FileNotFoundError),
    "CorruptFileError": (CheckpointError, OSError),
    "UnsafePathError": (CheckpointError, ValueError),
    "CheckpointAbortedError": (CheckpointError, RuntimeError),
    "FencedError": (CheckpointError, RuntimeError),
    "SessionEndedError": (FailedCheckpointsError,),
    "RestoreError": (CheckpointError, ValueError),
}
"""The leaves, each below its group and next to the builtin or PySpark's error that it is."""

CLASSES = {
    name: error
    for name, error in inspect.getmembers(errors, inspect.isclass)
    if error.__module__ == errors.__name__
}
LEAVES = {name: error for name, error in CLASSES.items() if not error.__subclasses__()}


def test_the_leaves_are_those_of_the_tree() -> None:
    assert set(LEAVES) == set(TREE)


@pytest.mark.parametrize("name", TREE)
def test_a_leaf_is_in_its_group_and_is_the_natural_builtin(name: str) -> None:
    assert LEAVES[name].__bases__ == TREE[name]


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_has_the_one_root_a_name_in_error_and_a_docstring(name: str) -> None:
    error = CLASSES[name]
    assert issubclass(error, CkptError)
    assert name.endswith("Error")
    assert error.__doc__
    assert not hasattr(builtins, name)


@pytest.mark.parametrize("name", TREE)
def test_a_message_is_shown_as_it_is_and_survives_the_way_from_an_executor(name: str) -> None:
    error = LEAVES[name]("operator 'count', subtask 3: what happened; what to do")
    assert str(error) == "operator 'count', subtask 3: what happened; what to do"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("name", [n for n in TREE if issubclass(LEAVES[n], PySparkException)])
def test_an_error_of_pyspark_has_its_condition(name: str) -> None:
    error = LEAVES[name]("what happened", "STATE_NOT_EXISTS")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert one.getCondition() == "STATE_NOT_EXISTS"
        assert str(one) == "[STATE_NOT_EXISTS] what happened"
    assert LEAVES[name]("what happened").getCondition() is None


@pytest.mark.parametrize("name", TREE)
def test_the_first_place_is_added_to_the_message(name: str) -> None:
    error = LEAVES[name]("what happened")
    for place in (", key 'a'", ", key 'b'"):
        error.add_place(place)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "what happened, key 'a'"


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    drawn = {}
    levels: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)(?: \(([\w, ]+)\))?(?=\s|$)", line)
        if match is None:
            continue
        levels[len(match[1]) // 4 :] = [match[2]]
        others = match[3].split(", ") if match[3] else []
        parents = [*levels[-2:-1], *others]
        drawn[match[2]] = parents or ["Exception"]
    coded = {name: [base.__name__ for base in error.__bases__] for name, error in CLASSES.items()}
    assert drawn == coded


def test_every_error_is_public() -> None:
    assert set(errors.__all__) == set(CLASSES)


def test_names_in_all_are_sorted_and_there() -> None:
    for package in (pyspark_ckpt, agg, errors, results, state_backends):
        assert list(package.__all__) == sorted(package.__all__)
        assert all(hasattr(package, name) for name in package.__all__)
