"""Everybody who may write a directory can post a request there, so each file is checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.formats.mailbox import Mailbox, file_name
from pyspark_ckpt.storage.open import LocalStorage

MOST_BYTES = 200


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


@pytest.fixture
def mailbox(tmp_path: Path) -> Mailbox:
    return Mailbox(LocalStorage(tmp_path), "wishes", "wish again", MOST_BYTES)


def test_requests_come_in_the_order_of_their_times(mailbox: Mailbox, tmp_path: Path) -> None:
    ids = [mailbox.post(Wish(str(at_ms)), at_ms) for at_ms in (20, 3, 100)]
    (tmp_path / "wishes" / "other.request.json").write_text("foreign")
    mailbox.write(ids[0], "answer", Wish("yes"))
    names = mailbox.names()
    assert mailbox.ids(names) == [ids[1], ids[0], ids[2]]
    assert [mailbox.read(each, Wish) for each in ids] == [Wish("20"), Wish("3"), Wish("100")]
    assert mailbox.read(ids[0], Wish, "answer") == Wish("yes")
    assert (mailbox.has(ids[0], "answer"), mailbox.has(ids[1], "answer")) == (True, False)
    with pytest.raises(FileExistsError):
        mailbox.write(ids[0], "answer", Wish("no"))
    mailbox.delete([file_name(ids[0]), file_name(ids[0], "answer")])
    assert mailbox.ids(mailbox.names()) == [ids[1], ids[2]]


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a pipe, whose reader waits for ever": os.mkfifo,
    "a directory": Path.mkdir,
    "missing": lambda _: None,
    "text": lambda path: path.write_text("wish"),
    "a field twice": lambda path: path.write_text('{"text":"a","text":"b"}'),
    "another field": lambda path: path.write_text('{"text":"a","more":1}'),
    "another type": lambda path: path.write_text('{"text":1}'),
    "no UTF-8": lambda path: path.write_bytes(b'{"text":"\xff"}'),
    "large": lambda path: path.write_text(f'{{"text":"{"a" * MOST_BYTES}"}}'),
    "deep": lambda path: path.write_text("[" * 100_000),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_the_library_does_not_write_is_refused(
    mailbox: Mailbox, tmp_path: Path, what: str
) -> None:
    request_id = f"{5:015}-{'0' * 16}"
    (tmp_path / "wishes").mkdir()
    HOSTILE[what](tmp_path / "wishes" / file_name(request_id))
    with pytest.raises(CorruptFileError, match="delete it, and wish again"):
        mailbox.read(request_id, Wish)
