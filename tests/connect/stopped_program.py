"""A client that stops its session under a query; see test_stopped_session.

Its arguments are a directory, and the address of the next session. With its own server, the
session's end ends that server too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.connect import program as shared
from tests.query.life.stopped_session_program import OF_QUERY, OF_STATE, story, told

cloudpickle.register_pickle_by_value(shared)  # the server cannot import it


def main(remote: str) -> None:
    shared.deliver(1, "ab")
    query = shared.writer("one").start()
    query.processAllAvailable()
    state = query.state("count", "count")
    shared.spark.stop()
    found: dict[str, Any] = {
        "story": story(query),
        "query": {name: told(lambda n=name: OF_QUERY[n](query, shared.base)) for name in OF_QUERY},
        "state": {name: told(lambda n=name: OF_STATE[n](state)) for name in OF_STATE},
    }
    shared.spark = SparkSession.builder.remote(remote).getOrCreate()
    shared.deliver(2, "ab")
    query = shared.writer("one").start()
    query.processAllAvailable()
    found["epoch"] = query.triggerCheckpoint().epoch
    query.stop()
    found["numbers"] = shared.numbers("one")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[2])
    os._exit(0)
