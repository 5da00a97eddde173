"""Removes from executed notebooks what depends on the run or the machine: timings, warnings."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat


def clean(path: Path) -> None:
    """Keep the outputs of a notebook's cells, without standard error."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        clean(Path(name))
