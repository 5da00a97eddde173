"""Count events of a Kafka topic per user, exactly once, through a savepoint and a fork.

``python -m examples.kafka`` starts its own broker, in another process. ``source.py`` is the
data source, to copy into a job where Spark's own Kafka source is not installed.

It needs the package ``confluent-kafka``: ``pip install confluent-kafka``.
"""
