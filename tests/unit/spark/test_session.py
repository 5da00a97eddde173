"""All settings of a session are read, whatever is in them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.sessions.session import session_of
from pyspark_ckpt.spark.session import reading_session


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"spark.ckpt.text": "a\nb\\n, c=d", "spark.ckpt.empty": "", "spark.ckpt.ä": "ö 😀"},
        {"spark.ckpt.text": "a\0b"},
        {"spark.ckpt.te\0xt": "ab", "spark.ckpt.text": "a\0b"},
    ],
)
def test_as_pyspark_reads_them(spark: SparkSession, values: dict[str, str]) -> None:
    session = spark.newSession()
    for key, value in values.items():
        session.conf.set(key, value)
    assert session_of(session).settings() == session.conf.getAll
    assert values.items() <= session_of(session).settings().items()


def test_a_session_that_reads_has_the_settings_of_file_systems_and_stores(
    spark: SparkSession,
) -> None:
    """A key of a bucket that is set in the session is Hadoop's setting too."""
    session = spark.newSession()
    given = {"fs.s3a.access.key": "k", "spark.sql.streaming.stateStore.maintenanceInterval": "7s"}
    for key, value in {**given, "spark.sql.session.timeZone": "Asia/Tokyo"}.items():
        session.conf.set(key, value)
    reading = reading_session(session)
    assert given.items() <= session_of(reading).settings().items()
    assert reading.conf.get("spark.sql.session.timeZone") != "Asia/Tokyo"
    assert reading._jsparkSession.sessionState().newHadoopConf().get("fs.s3a.access.key") == "k"
