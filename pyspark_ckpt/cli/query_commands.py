"""Commands that send a request to a running query: savepoint, stop, promote, discard, release."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import msgspec

from pyspark_ckpt.cli.output import Result, facts
from pyspark_ckpt.cli.state_commands import key_of, only_operator, plain
from pyspark_ckpt.clock import now_ms
from pyspark_ckpt.errors import CheckpointAbortedError, ConfigurationError, StateUseError
from pyspark_ckpt.formats.modes import SavepointFormat
from pyspark_ckpt.formats.requests import Action, Answer, Claimant, Request, RequestFiles
from pyspark_ckpt.history.places import find_checkpoints_directory
from pyspark_ckpt.history.run_log import user_and_host
from pyspark_ckpt.operator.descriptor import OnError, OperatorDescriptor
from pyspark_ckpt.operator.quarantine.quarantined_keys import KEYS_STATE
from pyspark_ckpt.operator.quarantine.releases import request_release
from pyspark_ckpt.restore.source import RestoreSource
from pyspark_ckpt.snapshot.snapshot import open_state

_POLL_SECONDS = 0.2


def savepoint(arguments: Namespace) -> Result:
    """Request a savepoint."""
    return _request(arguments, Action.SAVEPOINT, drain=False)


def stop(arguments: Namespace) -> Result:
    """Request a stop with a savepoint."""
    return _request(arguments, Action.STOP, drain=arguments.drain)


def promote(arguments: Namespace) -> Result:
    """Request that the candidate of the query's shadow takes over."""
    action = Action.PROMOTE_ANYWAY if arguments.accept_differences else Action.PROMOTE
    return _request(arguments, action, drain=False)


def discard(arguments: Namespace) -> Result:
    """Request that the query's shadows are discarded."""
    answered, _ = _post_and_wait(arguments, Action.DISCARD, drain=False)
    fields = {"request": answered, "discarded": True}
    return Result(fields, facts(fields))


def _request(arguments: Namespace, action: Action, *, drain: bool) -> Result:
    request_id, answer = _post_and_wait(arguments, action, drain=drain)
    made = msgspec.structs.asdict(answer)
    fields = {"request": request_id} | {
        name: made[name] for name in ("path", "epoch", "size_bytes", "files")
    }
    return Result(fields, facts(fields))


def _post_and_wait(arguments: Namespace, action: Action, *, drain: bool) -> tuple[str, Answer]:
    """Post a request, and return its id and the answer to it."""
    files = RequestFiles(find_checkpoints_directory(arguments.location))
    now = now_ms()
    request = Request(
        action=action,
        requested_at_ms=now,
        expires_at_ms=now + int(arguments.timeout * 1000),
        requested_by=user_and_host(),
        directory=arguments.directory,
        format=SavepointFormat.of(arguments.type),
        drain=drain,
    )
    request_id = files.post(request)
    try:
        _wait_until_taken(files, request_id, min(arguments.pick_up_timeout, arguments.timeout))
        answer = _wait(files, request_id, arguments.timeout)
    except KeyboardInterrupt:
        files.claim(request_id, Claimant.REQUESTER)
        raise
    if answer.error is not None:
        raise CheckpointAbortedError(f"request {request_id} was refused or failed: {answer.error}")
    return request_id, answer


def _wait_until_taken(files: RequestFiles, request_id: str, pick_up_s: float) -> None:
    """Wait until a query takes the request. If no query takes it, withdraw it."""
    deadline = time.monotonic() + pick_up_s
    while files.claim_of(request_id) is None:
        if time.monotonic() > deadline and files.claim(request_id, Claimant.REQUESTER):
            raise CheckpointAbortedError(
                f"no query took request {request_id} within {pick_up_s:g} s, so it is withdrawn. "
                "No query runs with this checkpoints directory, the query is busy with a "
                "checkpoint, or its driver's user may not write next to the request, which its "
                "log says. Start the query, raise --pick-up-timeout, or give the right"
            )
        time.sleep(_POLL_SECONDS)


def _wait(files: RequestFiles, request_id: str, timeout_s: float) -> Answer:
    """Return the answer to a request that a query has taken."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        answer = files.answer_to(request_id)
        if answer is not None:
            return answer
        time.sleep(_POLL_SECONDS)
    raise CheckpointAbortedError(
        f"the query took request {request_id} and has not answered within {timeout_s:g} s. It may "
        "still finish: look at `pyspark-ckpt history` later"
    )


def release(arguments: Namespace) -> Result:
    """Request that the next epoch releases quarantined keys, of a running query or its next run."""
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
                f"operator {uid!r} had no quarantined key in epoch {snapshot.epoch}, the newest "
                "checkpoint: is it built with onError='quarantine'? If it is, wait for the next "
                "checkpoint, or look at lastOperatorProgress"
            ) from exc
        if arguments.key:
            keys = [key_of(view, arguments.key)]
            if view.get(*keys[0]) is None:
                note = (
                    f"the key was not quarantined in epoch {snapshot.epoch}, the newest "
                    "checkpoint: it is passed over, unless it is quarantined when the request is "
                    "carried out"
                )
        path = snapshot.path
    operators = RestoreSource(path).metadata.operators
    (stored,) = (operator for operator in operators if operator.uid == uid)
    descriptor = msgspec.structs.replace(OperatorDescriptor.of(stored), on_error=OnError.QUARANTINE)
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
        "keys": "all quarantined keys" if keys is None else plain(keys),
    }
