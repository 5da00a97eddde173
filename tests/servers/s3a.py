"""Hadoop's S3A file system for the Spark of the tests, which has no file system for S3.

The jars come from a package of PyPI. They are of Hadoop 3.3, an earlier version than Spark's own
Hadoop: enough to try that a query works on S3A, and no proof for the S3A of Spark's version.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.servers.installed import installed, run

_PACKAGE = "bodo-iceberg-connector==2026.10"
_JARS = re.compile(
    r"/(hadoop-aws|aws-java-sdk-(core|s3|sts|kms|dynamodb)|jackson-dataformat-cbor|ion-java"
    r"|jmespath-java|joda-time|wildfly-openssl|commons-logging|commons-collections)-[^/]*\.jar$"
)


def s3a_jars() -> list[Path]:
    """Return the jars, which are downloaded once."""
    return sorted(installed("s3a-3.3.3-2", _fill).glob("*.jar"))


def s3a_conf(environment: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for the S3 server of an environment."""
    hadoop = {
        "impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "endpoint": environment["AWS_ENDPOINT_URL"],
        "access.key": environment["AWS_ACCESS_KEY_ID"],
        "secret.key": environment["AWS_SECRET_ACCESS_KEY"],
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        # The defaults of Spark's Hadoop have units, which this S3A does not read.
        "connection.establish.timeout": "5000",
        "connection.timeout": "60000",
        "threads.keepalivetime": "60",
        "multipart.purge.age": "86400",
        "change.detection.mode": "none",
    }
    conf = {f"spark.hadoop.fs.s3a.{key}": value for key, value in hadoop.items()}
    conf["spark.hadoop.fs.AbstractFileSystem.s3a.impl"] = "org.apache.hadoop.fs.s3a.S3A"
    return conf


def _fill(directory: Path) -> None:
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _PACKAGE], directory)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        for name in filter(_JARS.search, files.namelist()):
            (directory / Path(name).name).write_bytes(files.read(name))
    wheel.unlink()
