"""A pytest fixture for replays; ``pytest_plugins = ["pyspark_ckpt.testing.pytest_plugin"]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.testing.replaying.replay import ReplayResult, replay


class ReplayCapture(Protocol):
    """What the fixture :func:`replay_capture` is."""

    def __call__(
        self, file: str | Path, processor: StatefulProcessor, *, same: bool = True, **options: Any
    ) -> ReplayResult:
        """Replay a capture."""


@pytest.fixture
def replay_capture(request: pytest.FixtureRequest) -> ReplayCapture:
    """Return :func:`pyspark_ckpt.testing.replay` for captures next to the test's file.

    The test fails if anything differs, and shows keys, columns, old and new values. With
    ``same=False`` the test itself looks at what differs.
    """

    def run(
        file: str | Path, processor: StatefulProcessor, *, same: bool = True, **options: Any
    ) -> ReplayResult:
        __tracebackhide__ = True
        result = replay(request.path.parent / file, processor, **options)
        if same:
            result.assert_same()
        return result

    return run
