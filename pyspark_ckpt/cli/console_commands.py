"""Commands of the console: ui, bundle."""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from pyspark_ckpt.cli.output import Result, as_json, check_can_write
from pyspark_ckpt.console.data.bundle import unpack_bundle, write_bundle
from pyspark_ckpt.console.data.places import find_places
from pyspark_ckpt.console.opening import Console, open_console
from pyspark_ckpt.errors import CheckpointNotFoundError, ConfigurationError
from pyspark_ckpt.storage.open import LocalStorage, Storage, open_storage


def ui(arguments: Namespace) -> Result:
    """Serve the console until it is interrupted, with the time that no other program wants."""
    where: dict[str, Any] = {"host": arguments.host, "port": arguments.port}
    if not Path(arguments.path).is_file():
        _check_is_there(open_storage(arguments.path))
        return _serve(open_console(arguments.path, **where), arguments)
    with tempfile.TemporaryDirectory(prefix="pyspark_ckpt_bundle-") as unpacked:
        unpack_bundle(arguments.path, Path(unpacked))
        return _serve(open_console(unpacked, bundle=arguments.path, **where), arguments)


def _check_is_there(root: Storage) -> None:
    """Raise if there is no directory; a page would only say that there is no query."""
    is_there = root.root.is_dir() if isinstance(root, LocalStorage) else bool(root.entries())
    if not is_there:
        raise CheckpointNotFoundError(
            f"there is no {root.url}: give a query's checkpointLocation, a directory of several, "
            "or a bundle"
        )


def _serve(console: Console, arguments: Namespace) -> Result:
    """Show where the console is, at once, and serve it until somebody interrupts that."""
    fields = {"url": console.url}
    text = f"the console is at {console.url} until you press Ctrl+C\n"
    sys.stdout.write(as_json(fields) if arguments.json else text)
    sys.stdout.flush()
    try:
        console.wait()
    except KeyboardInterrupt:
        pass
    finally:
        console.close()
    return Result(fields, "", is_shown=True)


def bundle(arguments: Namespace) -> Result:
    """Write one file with what the console shows, without states."""
    output = Path(arguments.output)
    check_can_write("--output", output)
    if output.exists():
        raise ConfigurationError(f"--output {output} exists: give the name of a new file")
    root = open_storage(arguments.path)
    places = find_places(root)
    if not places.queries and not places.savepoints:
        raise CheckpointNotFoundError(
            f"{root.url} has no query and no savepoint: give a query's checkpointLocation, or a "
            "directory of several"
        )
    made = write_bundle(root, places, output)
    fields = {
        "output": arguments.output,
        "queries": len(places.queries),
        "savepoints": len(places.savepoints),
        "files": made.files,
        "cut": list(made.cut),
        "unnamed": made.unnamed,
    }
    text = (
        f"{arguments.output}: {len(places.queries)} queries, {len(places.savepoints)} savepoints, "
        f"{made.files} files; open it with: pyspark-ckpt ui {arguments.output}\n"
    )
    if made.cut:
        text += (
            f"not all fits into a bundle, so older records of {len(made.cut)} of them are left "
            f"out, such as of {made.cut[0]}: make bundles of fewer queries to have all\n"
        )
    if made.unnamed:
        text += f"left out: {made.unnamed} files whose names the library does not give\n"
    return Result(fields, text)
