"""The command that releases parked keys of a query: ``release``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from pyspark_ckpt.cli.output import Result, facts
from pyspark_ckpt.cli.state_commands import key_of, only_operator, plain
from pyspark_ckpt.errors import ConfigurationError, StateUseError
from pyspark_ckpt.history.places import find_checkpoints_directory
from pyspark_ckpt.operator.descriptor import OnError, OperatorDescriptor
from pyspark_ckpt.operator.quarantine.parked_keys import KEYS_STATE
from pyspark_ckpt.operator.quarantine.requested import request_release
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.snapshot import open_state


def release(arguments: Namespace) -> Result:
    """Request that the next epoch releases parked keys, of a running query or its next run."""
    storage = find_checkpoints_directory(arguments.location)
    keys: list[tuple[Any, ...]] | None = None
    note = None
    with open_state(storage.url) as snapshot:
        uid = arguments.operator or only_operator(snapshot, KEYS_STATE)
        try:
            view = snapshot.state(uid, KEYS_STATE)
        except StateUseError as exc:
            if uid not in snapshot.operators:
                raise
            raise ConfigurationError(
                f"operator {uid!r} had no parked key in epoch {snapshot.epoch}, the newest "
                "checkpoint: is it built with onError='quarantine'? If it is, wait for the next "
                "checkpoint, or look at lastOperatorProgress"
            ) from exc
        if arguments.key:
            keys = [key_of(view, arguments.key)]
            if view.get(*keys[0]) is None:
                note = (
                    f"the key was not parked in epoch {snapshot.epoch}, the newest checkpoint: it "
                    "is passed over, unless it is parked when the request is carried out"
                )
        path = snapshot.path
    operators = RestoreSource(path).metadata.operators
    (stored,) = (operator for operator in operators if operator.uid == uid)
    descriptor = OperatorDescriptor(
        uid=uid,
        parallelism=stored.parallelism,
        max_parallelism=stored.max_parallelism,
        key_schema=stored.key_schema,
        on_error=OnError.QUARANTINE,
    )
    request_id = request_release(storage, [descriptor], uid, keys)
    fields = requested(request_id, uid, keys)
    if note is not None:
        fields["note"] = note
    return Result(fields, facts(fields))


def requested(request_id: str, uid: str, keys: list[tuple[Any, ...]] | None) -> dict[str, Any]:
    """Return a request as the command shows it, with keys as ``--key`` takes them."""
    return {
        "request": request_id,
        "operator": uid,
        "keys": "all parked keys" if keys is None else plain(keys),
    }
