"""The codec of a state's schemas writes the newest and reads all."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from pyspark_ckpt.errors import CorruptFileError
from pyspark_ckpt.values.codec import (
    MAX_VERSION,
    EarlierSchema,
    TupleCodec,
    VersionedCodec,
    version_of,
)
from tests.unit.operator.subtask_epochs import NUMBER

PLAIN = TupleCodec(NUMBER, "state 's'")


def test_the_first_schema_has_no_prefix() -> None:
    codec = VersionedCodec(PLAIN, [], "state 's'")
    assert codec.encode((1,)) == PLAIN.encode((1,))
    assert version_of(codec.encode((1,))) == 0
    assert codec.decode(PLAIN.encode((1,))) == (1,)


@pytest.mark.parametrize("versions", [1, 2, MAX_VERSION])
def test_entries_of_every_schema_are_read_by_its_own_reader(versions: int) -> None:
    def reader(version: int) -> EarlierSchema:
        return EarlierSchema(PLAIN, lambda values: (version, *values))

    codec = VersionedCodec(PLAIN, [reader(version) for version in range(versions)], "state 's'")
    bare = PLAIN.encode((1,))
    assert codec.decode(bare) == (0, 1)
    for version in range(1, versions):
        assert codec.decode(bytes([0xCC, version]) + bare) == (version, 1)
    newest = codec.encode((7,))
    assert version_of(newest) == versions
    assert codec.decode(newest) == (7,)


@pytest.mark.parametrize("fields", [0, 1, 15, 16, 70_000])
def test_no_tuple_looks_like_one_of_a_later_schema(fields: int) -> None:
    schema = T.StructType([T.StructField(f"f{n}", T.LongType()) for n in range(fields)])
    codec = TupleCodec(schema, "wide")
    assert version_of(codec.encode((None,) * fields)) == 0


def test_a_schema_that_the_handle_does_not_know_is_corrupt() -> None:
    codec = VersionedCodec(PLAIN, [EarlierSchema(PLAIN, tuple)], "operator 'u', state 's'")
    with pytest.raises(CorruptFileError, match=r"'u', state 's'.*schema 2.*knows 2"):
        codec.decode(b"\xcc\x02" + PLAIN.encode((1,)))
