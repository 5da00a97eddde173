"""The taker stops a query that cannot have checkpoints, and no other query."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.storage.open import LocalStorage
from tests.faults.epochs import Epochs


class Watched:
    """A query that keeps the errors for which it would be stopped."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def cannot_continue(self, error: BaseException) -> None:
        self.errors.append(error)


@pytest.mark.parametrize(("error", "stops"), [(KeyboardInterrupt, False), (SystemError, True)])
def test_an_interrupted_caller_does_not_stop_the_query(
    tmp_path: Path, error: type[BaseException], stops: bool
) -> None:
    runner = Epochs(LocalStorage(tmp_path / "ckpt"), tmp_path / "location").runner()
    watched = Watched()

    def committed_epoch() -> int | None:
        raise error

    taker = CheckpointTaker(runner, cast("Any", None), cast("Any", watched), committed_epoch, 0)
    with pytest.raises(error):
        taker.take(periodic=False)
    assert [type(each) for each in watched.errors] == ([error] if stops else [])
    runner.close()
