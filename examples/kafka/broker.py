"""A Kafka broker in memory, librdkafka's own: ``python -m examples.kafka.broker``.

It prints its address and serves until its standard input ends, so it ends with the process that
started it, however that ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

_TIMEOUT_S = 30


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker in another process; yields its address, ``host:port``.

    A topic is made when it is first used. It has four partitions.
    """
    command = [sys.executable, str(Path(__file__))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise RuntimeError(f"the broker ended with {process.wait()}; its log is above")
            yield address
        finally:
            process.stdin.close()


def main() -> None:
    """Serve until the standard input ends."""
    cluster = Producer({"test.mock.num.brokers": 1, "log_level": 3})
    brokers = cluster.list_topics(timeout=_TIMEOUT_S).brokers.values()
    print(",".join(f"{each.host}:{each.port}" for each in brokers), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
