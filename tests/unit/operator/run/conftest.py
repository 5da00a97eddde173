"""A subtask whose processor may be any."""

from __future__ import annotations

import pytest

from tests.unit.operator.run.logged_processor import (
    Subtask,
)
from tests.unit.operator.subtask_epochs import SubtaskEpochs


@pytest.fixture
def subtask(subtask_epochs: SubtaskEpochs) -> Subtask:
    subtask_epochs.set_time(1000)
    return Subtask(subtask_epochs)
