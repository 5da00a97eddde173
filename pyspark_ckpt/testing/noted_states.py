"""A processor's handle that a test may look into."""

from __future__ import annotations

from typing import Any

from pyspark_ckpt.errors import HarnessUseError
from pyspark_ckpt.operator.state.handle import ProcessorHandle


class NotedStates(ProcessorHandle):
    """The library's own handle; what it gave out is found again by name."""

    def noted(self, name: str, *kinds: type) -> Any:
        """Return a state that ``init`` asked for.

        Raises
        ------
        HarnessUseError
            If there is none of that name and kind.
        """
        state = self._given.get(name)
        if state is None:
            raise HarnessUseError(
                f"{self._where}: init asks for no state {name!r}, but for {sorted(self._given)}",
                "STATE_NOT_EXISTS",
            )
        if kinds and not isinstance(state, kinds):
            raise HarnessUseError(
                f"{self._where}: state {name!r} is a {type(state).__name__}, no "
                f"{' or '.join(kind.__name__ for kind in kinds)}",
                "STATE_NOT_EXISTS",
            )
        return state
