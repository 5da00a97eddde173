"""Rewrites the entries of one state with another schema or other map keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql import types as T

from pyspark_ckpt.errors import CkptError, ProcessorError
from pyspark_ckpt.formats.handle import StateDescriptor
from pyspark_ckpt.migration import Migration
from pyspark_ckpt.operator.state.kinds import Entries, kind_of
from pyspark_ckpt.operator.state.list import decode_chunk, encode_chunk
from pyspark_ckpt.operator.table.catalog import codec_of, same_schema, struct_type
from pyspark_ckpt.operator.user_frames import shortened, user_frames
from pyspark_ckpt.operator.values.codec import TupleCodec
from pyspark_ckpt.operator.values.wire_form import row_type_of

_Tuple = tuple[Any, ...]


class StateRewrite:
    """Turns entries of a stored state into entries of another state; runs on an executor."""

    def __init__(
        self,
        source: StateDescriptor,
        target: StateDescriptor,
        migration: Migration | None,
        where: str,
    ) -> None:
        self._where = where
        self._entries = kind_of(source).entries
        self._new = codec_of(target, where)
        value = None if migration is None else migration.value
        if value is None:  # what no user sees stays as it is stored
            # Each entry from its own schema: it may have a field that the newest stored one lacks.
            self._old, self._new = codec_of(_followed(source, target), where).plain, self._new.plain
            self._value = None
        else:
            self._old = codec_of(source, where)
            self._value = _on_rows(value, struct_type(source.value_schema))
        if source.map_key_schema is not None and target.map_key_schema is not None:
            stored_key = struct_type(source.map_key_schema)
            key = None if migration is None else migration.key
            self._map_key = None if key is None else _on_rows(key, stored_key)
            self._old_key = TupleCodec(stored_key, where, is_key=True)
            self._new_key = TupleCodec(struct_type(target.map_key_schema), where, is_key=True)

    def __call__(self, rest: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Rewrite an entry.

        `rest` is the part of the stored key that follows the user's key: the key of a map, or the
        number of a chunk. `data` is the entry without its stamp.
        """
        try:
            return self._rewritten(rest, data)
        except CkptError:
            raise
        except Exception as exc:
            raise ProcessorError(
                f"{self._where}: the migration raised {type(exc).__name__}: "
                f"{shortened(str(exc))}; correct it and start the query again, nothing of this "
                f"epoch was committed{user_frames(exc)}"
            ) from exc

    def _rewritten(self, rest: bytes, data: bytes) -> tuple[bytes, bytes]:
        if self._entries is Entries.CHUNKS:
            if not rest:  # the list's number of chunks
                return b"", data
            return rest, encode_chunk([self._item(item) for item in decode_chunk(data)])
        if self._entries is Entries.BY_MAP_KEY:
            if self._map_key is not None:
                rest = self._new_key.encode(self._map_key(self._old_key.decode(rest)))
            return rest, self._item(data)
        return b"", self._item(data)

    def _item(self, data: bytes) -> bytes:
        values = self._old.decode(data)
        return self._new.encode(values if self._value is None else self._value(values))


def _followed(source: StateDescriptor, target: StateDescriptor) -> StateDescriptor:
    """Return a stored state whose newest schema is that of another one."""
    if same_schema(source.value_schema, target.value_schema):
        return source
    earlier = (*source.earlier_schemas, source.value_schema)
    return msgspec.structs.replace(
        source, value_schema=target.value_schema, earlier_schemas=earlier
    )


def _on_rows(function: Callable[[Any], _Tuple], schema: T.StructType) -> Callable[[_Tuple], _Tuple]:
    """Return a function over tuples that calls the user's function with named rows."""
    row_type = row_type_of(schema.names)
    return lambda values: function(tuple.__new__(row_type, values))
