"""``attach`` on a classic driver: the query of this process that has an id or a name."""

from __future__ import annotations

import pytest

import pyspark_ckpt as ckpt
from tests.query.harness import Job


def test_sessions_that_have_a_name_in_common_do_not_get_each_others_query(job: Job) -> None:
    job.feed.add([("a", 1)])
    here = job.but(location="here", out="here_out")
    there = job.but(location="there", out="there_out", spark=job.spark.newSession())
    with pytest.raises(ckpt.errors.ConfigurationError, match="no query 'counted'"):
        ckpt.attach(job.spark, "counted")
    one = here.writer().queryName("counted").start()
    assert ckpt.attach(there.spark, "counted") is one
    other = there.writer().queryName("counted").start()
    try:
        assert ckpt.attach(here.spark, "counted") is one
        assert ckpt.attach(there.spark, "counted") is other
        third = job.spark.newSession()
        with pytest.raises(ckpt.errors.ConfigurationError, match="2 running queries") as found:
            ckpt.attach(third, "counted")
        assert one.id in str(found.value)
        assert other.id in str(found.value)
        assert ckpt.attach(third, other.id) is other
    finally:
        other.stop()
    assert ckpt.attach(third, "counted") is one
    one.stop()
