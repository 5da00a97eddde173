"""Continues a golden location in a process of its own, with whatever version is on PYTHONPATH.

``python -m tests.golden.earlier_program BASE LOCATION OPTIONS RESULT [CHECKPOINT]``: first verifies
all retained checkpoints, then processes all available input, and writes what the query emitted.
With a checkpoint, the query restores from it into a fresh location.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pyspark_ckpt as ckpt
from tests.golden import program
from tests.golden.program import Sink
from tests.golden.session import golden_session


def main(
    base: Path, location: Path, options: str, result: Path, checkpoint: str | None = None
) -> None:
    retained = sorted(location.glob("pyspark_ckpt/chk-*/_metadata"))
    verified = [ckpt.verify(str(path.parent)).epoch for path in retained]
    with tempfile.TemporaryDirectory() as directory:
        spark = golden_session(directory)
        sink = Sink()
        writer = program.writer(spark, base, location, sink, json.loads(options))
        query = (writer if checkpoint is None else writer.restoreFrom(checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        spark.stop()
    rows = [row.asDict() for row in sink.rows()]
    found = {"code": ckpt.__file__, "verified": verified, "rows": rows}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    base, location, options, result, *checkpoint = sys.argv[1:]
    main(Path(base), Path(location), options, Path(result), *checkpoint)
