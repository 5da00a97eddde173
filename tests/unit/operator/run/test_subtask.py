"""How a subtask notices completed checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_ckpt.operator.run.subtask import checkpoint_to_notify
from pyspark_ckpt.storage.open import LocalStorage, Storage


class Curious:
    def notifyCheckpointComplete(self, checkpointId: int) -> None:
        """Never called here."""


def test_the_newest_complete_checkpoint_is_noticed(
    storage: Storage, put_file: Callable[..., Path]
) -> None:
    assert checkpoint_to_notify(Curious(), storage) is None
    storage.make_directory("chk-1")
    assert checkpoint_to_notify(Curious(), storage) is None
    for number in (2, 9, 10):
        put_file(f"chk-{number}/_author")
        put_file(f"chk-{number}/_metadata")
    put_file("chk-12/_author")
    put_file("chk-11/._metadata.0123abcd.tmp")
    put_file("chk-x/_metadata")
    assert checkpoint_to_notify(Curious(), storage) == 10


def test_a_checkpoint_of_another_store_is_noticed_when_the_store_has_it(
    storage: Storage, put_file: Callable[..., Path]
) -> None:
    put_file("chk-1/_metadata")
    put_file("chk-1/_pointed")
    put_file("chk-2/_metadata")
    assert checkpoint_to_notify(Curious(), storage) == 1
    put_file("chk-2/_pointed")
    assert checkpoint_to_notify(Curious(), storage) == 2


def test_nothing_is_listed_for_a_processor_that_does_not_ask(tmp_path: Path) -> None:
    class Unlisted(LocalStorage):
        def list(self, directory: str | None = None) -> list[str]:
            raise AssertionError("listed")

    assert checkpoint_to_notify(object(), Unlisted(tmp_path)) is None
