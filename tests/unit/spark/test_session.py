"""All settings of a session are read, whatever is in them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pyspark_ckpt.spark.session import settings_of


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
    assert settings_of(session) == session.conf.getAll
    assert values.items() <= settings_of(session).items()
