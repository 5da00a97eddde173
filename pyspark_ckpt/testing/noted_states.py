"""A processor's handle whose states a test can look up by name."""

from __future__ import annotations

from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.operator.state.handle import ProcessorHandle
from pyspark_ckpt.operator.state.registry import GivenState


class NotedStates(ProcessorHandle):
    """The library's own handle, with a look-up of the states that ``init`` asked for."""

    def noted(self, name: str, *classes: type) -> GivenState:
        """Return a state that ``init`` asked for."""
        given = self._given.get(name)
        if given is None:
            raise HarnessUseError(
                f"{self._where}: init asks for no state {name!r}, only for {sorted(self._given)}: "
                "correct the name",
                "STATE_NOT_EXISTS",
            )
        if classes and not isinstance(given.state, classes):
            raise HarnessUseError(
                f"{self._where}: state {name!r} is a {type(given.state).__name__} and no "
                f"{' or '.join(each.__name__ for each in classes)}: use a method for "
                "that kind of state",
                "STATE_NOT_EXISTS",
            )
        return given
