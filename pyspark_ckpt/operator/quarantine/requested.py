"""Requests to release parked keys, checked and written before an epoch carries them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.operator.descriptor import OnError, OperatorDescriptor
from pyspark_ckpt.operator.quarantine.releases import Release, ReleaseFiles
from pyspark_ckpt.operator.rows.key_hash import KeyPlaces
from pyspark_ckpt.operator.table.catalog import struct_type
from pyspark_ckpt.storage.open import Storage


def request_release(
    storage: Storage,
    operators: Sequence[OperatorDescriptor],
    uid: str,
    keys: Iterable[Any] | None,
) -> str:
    """Write a request to release keys of an operator; it is durable on return.

    `keys` are values of a single key column, or tuples of values; ``None`` stands for all parked
    keys.
    """
    if isinstance(keys, str | bytes):  # its characters would be taken for keys
        raise PlanError(
            f"operator {uid!r}: the keys to release are {keys!r}, which is one key: give a list"
        )
    parking = {each.uid: each for each in operators if each.on_error is OnError.QUARANTINE}
    operator = parking.get(uid)
    if operator is None:
        raise PlanError(
            f"the query has no operator {uid!r} with onError='quarantine': it has "
            f"{', '.join(map(repr, parking)) or 'none'}"
        )
    stored = None
    if keys is not None:
        places = KeyPlaces(struct_type(operator.key_schema), operator.max_parallelism)
        given = (key if isinstance(key, tuple) else (key,) for key in keys)
        stored = tuple(places.place(key)[1].hex() for key in given)
    return ReleaseFiles(storage).request(Release(uid=uid, keys=stored))
