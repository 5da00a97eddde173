"""A process in which an optional library is not installed."""

from __future__ import annotations

import subprocess
import sys


def check_advice(library: str, extra: str, source: str, call: str) -> None:
    """Check that a call without its library raises an error that says what to install.

    Parameters
    ----------
    library
        The module that cannot be imported.
    extra
        The extra of this library that installs it.
    source, call
        The line that imports, and the call.
    """
    program = (
        f"import sys\nsys.modules[{library!r}] = None\n{source}\n"
        f"try: {call}\n"
        "except ValueError as refused: print(type(refused).__name__, refused)"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.startswith("ConfigurationError")
    assert f"pyspark_ckpt[{extra}]" in printed
