"""Properties files with settings, such as ``conf/rocksdb.conf``."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_ckpt.errors import ConfigurationError
from pyspark_ckpt.settings.settings import read_settings


def read_conf_file(path: str | Path) -> dict[str, str]:
    """Read a properties file such as ``conf/rocksdb.conf`` for a session builder.

    ``SparkSession.builder.config(map=read_conf_file("conf/rocksdb.conf"))`` does for a notebook
    what ``spark-submit --properties-file`` does for a job.

    Parameters
    ----------
    path : str or pathlib.Path
        The file, on the driver.

    Returns
    -------
    dict of str to str
        Key and value of each line; comments and empty lines are left out.

    Raises
    ------
    ConfigurationError
        If a line is not a pair, or has an unknown ``spark.ckpt.`` key or a value that is not
        allowed.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> conf = Path(directory, "heap.conf")
    >>> _ = conf.write_text("spark.ckpt.state.backend.type  heap")
    >>> ckpt.read_conf_file(conf)
    {'spark.ckpt.state.backend.type': 'heap'}
    """
    values: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        match = re.fullmatch(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)", stripped)
        if match is None:
            raise ConfigurationError(
                f"{path}, line {number}: {stripped!r} has no value: write a key and a value"
            )
        values[match[1]] = match[2]
    read_settings(values, {})
    return values
