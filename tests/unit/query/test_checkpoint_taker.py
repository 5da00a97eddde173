"""The taker stops a query that cannot have checkpoints, and no other query."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyspark_ckpt.checkpoint.epoch_race import Standing
from pyspark_ckpt.errors import CheckpointAbortedError, FencedError
from pyspark_ckpt.query.checkpoint_taker import CheckpointTaker
from pyspark_ckpt.storage.open import LocalStorage
from tests.faults.epochs import Epochs


class Watched:
    """A query that keeps the errors for which it would be stopped."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def stop(self, failure: BaseException) -> None:
        self.errors.append(failure)

    def cannot_continue(self, error: BaseException) -> None:
        self.errors.append(error)


def test_a_run_that_gives_way_takes_nothing_back_and_is_no_failure(tmp_path: Path) -> None:
    """It has committed the newest epoch, and the next run of its process none."""
    epochs = Epochs(LocalStorage(tmp_path / "ckpt"), tmp_path / "location")
    former, watched = epochs.runner(), Watched()
    race: Any = SimpleNamespace(standing=lambda: Standing.OURS)
    taker = CheckpointTaker(former, race, cast("Any", watched), epochs.committed_epoch, 0)
    epochs.commit()
    former.fence.give_way()
    following = epochs.runner()
    with pytest.raises(FencedError):
        taker.take_back_if_fenced()
    with pytest.raises(CheckpointAbortedError):
        taker.take(periodic=False)
    following.lease.check()
    assert watched.errors == []
    former.close()
    following.close()


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
