"""What a bundle leaves out."""

from __future__ import annotations

from pyspark_ckpt.console.data.bundle import without_keys
from pyspark_ckpt.history.run_record import (
    CheckpointRecord,
    OperatorRecord,
    RunEnded,
    RunNote,
    SlowKeyRecord,
    decode_run_record,
    encode_run_record,
)


def note(*keys: SlowKeyRecord) -> RunNote:
    operators = (OperatorRecord(uid="op", rows=7, slow_keys=keys),)
    checkpoint = CheckpointRecord(
        checkpoint_id=1, epoch=2, triggered_at_ms=3, duration_ms=4, size_bytes=5,
        operators=operators,
    )  # fmt: skip
    return RunNote(run_id="r", at_ms=1, checkpoints=(checkpoint,))


def test_the_keys_of_a_record_are_cut_out_and_nothing_else() -> None:
    stored = encode_run_record(note(SlowKeyRecord(key="secret", subtask=0, ms=9, share=0.5)))
    assert decode_run_record(without_keys(stored)) == note()
    ended = encode_run_record(RunEnded(run_id="r", at_ms=1, error="why"))
    assert without_keys(ended) == ended


def test_a_record_that_cannot_be_read_is_not_copied() -> None:
    assert without_keys(b'{"what": "note", "slow_keys": ["secret"]') == b"{}"
