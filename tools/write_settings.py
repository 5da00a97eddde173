"""Write what the list of settings says into ``docs/settings.md`` and ``conf/all.conf``.

Run it after a change of ``pyspark_ckpt/settings/keys.py``: ``make pages``.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from pyspark_ckpt.settings import SETTINGS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
CONF = ROOT / "conf" / "all.conf"
_TABLE = re.compile(r"(?<=^\| key \| default \| meaning \|\n)(\|.*\n)+", re.MULTILINE)
_HEAD = """\
# Every setting of pyspark_ckpt with its default. `make pages` writes this file.
# Remove the # before a key to set it. Settings without a default have an example or a remark.
# Use: spark-submit --properties-file conf/all.conf job.py
# or:  SparkSession.builder.config(map=pyspark_ckpt.read_conf_file("conf/all.conf"))
"""


def table() -> str:
    """Return the lines of the table of all settings, below its head."""
    rows = [
        f"| `{each.key}` | {_default(each.default, each.without)} | {each.meaning} |\n"
        for each in SETTINGS
    ]
    return "|---|---|---|\n" + "".join(rows)


def page(before: str) -> str:
    """Return the page on settings with a new table in it."""
    after, tables = _TABLE.subn(lambda _: table(), before)
    if tables != 1:
        raise ValueError(f"{PAGE} has {tables} tables of settings; one is needed")
    return after


def conf() -> str:
    """Return a properties file with every key, each after a comment sign."""
    return _HEAD + "".join(
        "\n"
        + textwrap.fill(
            f"{each.meaning} (allowed: {each.allowed})".replace("`", ""),
            100,
            initial_indent="# ",
            subsequent_indent="# ",
            break_on_hyphens=False,
        )
        + f"\n#{each.key} {each.default or f'<{each.without}>'.replace('`', '')}\n"
        for each in SETTINGS
    )


def _default(default: str | None, without: str) -> str:
    return without if default is None else f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    CONF.write_text(conf(), encoding="utf-8")
