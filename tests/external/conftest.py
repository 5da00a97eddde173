"""Where the locations of these tests are."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.external.driver import Driver, Input, conf_of, conf_with, driver
from tests.servers.gs import gs_conf, gs_jars
from tests.servers.s3 import BUCKET

KINDS = ("s3a", "hdfs", "gs")


@dataclass(frozen=True)
class Place:
    """A directory of the test's own on a storage, and Spark's settings for it."""

    kind: str
    url: str
    conf: dict[str, str]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    return place_of(request.param, request)


def place_of(kind: str, request: pytest.FixtureRequest) -> Place:
    if kind == "s3a":
        environment = request.getfixturevalue("s3_environment")
        return Place(kind, f"s3a://{BUCKET}/{secrets.token_hex(8)}", conf_of(environment))
    if kind == "gs":
        environment = request.getfixturevalue("gcs_environment")
        conf = conf_with(environment, gs_jars(), gs_conf(environment))
        return Place(kind, request.getfixturevalue("gcs_url"), conf)
    return Place(kind, request.getfixturevalue("hdfs_url"), {})


@pytest.fixture
def rows(tmp_path: Path) -> Input:
    """Input whose seed is printed, and can be given again."""
    seed = int(os.environ.get("CKPT_TEST_SEED") or secrets.randbits(32))
    print(f"CKPT_TEST_SEED={seed}")
    return Input(tmp_path, seed)


@pytest.fixture
def spark_driver(tmp_path: Path, place: Place) -> Iterator[Driver]:
    with driver(tmp_path, place.conf) as started:
        yield started
