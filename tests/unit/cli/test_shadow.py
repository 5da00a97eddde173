"""``pyspark-ckpt shadow --html``: what hours of comparing have found is not lost."""

from __future__ import annotations

import datetime
import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest

import pyspark_ckpt as ckpt
from pyspark_ckpt.cli import spark_commands
from pyspark_ckpt.cli.arguments import read_arguments
from pyspark_ckpt.cli.main import main
from pyspark_ckpt.cli.output import json_text
from pyspark_ckpt.cli.spark_commands import reported, shadow


@pytest.mark.parametrize(
    ("html", "why"),
    [("missing/report.html", "there is no directory"), ("taken", "is a directory"),
     ("file/report.html", "there is no directory")],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], html: str, why: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").touch()
    programs = [f"{tmp_path}/a.py:build", f"{tmp_path}/b.py:build"]
    code = main(["shadow", str(tmp_path), *programs, "--html", str(tmp_path / html)])
    assert code == 2
    assert why in capfd.readouterr().err


def test_a_report_is_shown_though_it_could_not_be_written(tmp_path: Path) -> None:
    report = ckpt.results.ShadowReport(8, 9, 2, rows=40, state_comparisons=2)
    result = reported(report, tmp_path / "removed" / "report.html")
    assert "2 epochs (8 to 9), 40 rows" in result.text
    assert "could not be written" in result.text
    assert "removed/report.html" in str(result.fields["html_error"])
    assert not result.is_answer
    written = reported(report, tmp_path / "report.html")
    assert written.is_answer
    assert "html_error" not in written.fields
    assert "40 rows" in (tmp_path / "report.html").read_text()


class Failing:
    """A shadow whose candidate fails after some epochs."""

    def __init__(self, epochs: int) -> None:
        self.report = ckpt.results.ShadowReport(
            8, 8, epochs, rows=7, state_comparisons=epochs, failure="the candidate failed"
        )

    def awaitTermination(self, timeout: float | None) -> bool:
        raise ckpt.errors.CkptError("no luck")


@pytest.mark.parametrize("epochs", [0, 1])
def test_what_was_compared_before_a_program_failed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    failing = Failing(epochs)
    stand_ins = {
        "parallelism_at": 1,
        "local_session": nullcontext(),
        "query_of": None,
        "shadow_of_location": nullcontext(failing),
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(spark_commands, name, lambda *_, value=value: value)
    arguments = read_arguments(["shadow", str(tmp_path), "job.py:build", "new.py:build"])
    if epochs == 0:
        with pytest.raises(ckpt.errors.CkptError, match="no luck"):
            shadow(arguments)
        return
    result = shadow(arguments)
    assert result.fields["failure"] == "the candidate failed"
    assert (result.fields["epochs"], result.fields["rows"]) == (1, 7)
    assert (result.is_done, result.is_answer) == (False, False)


def test_maps_with_any_keys_are_json() -> None:
    row = {"at": {datetime.date(2024, 5, 1): 1, (1, "a"): math.nan}, "n": {math.inf: 1, None: 2}}
    found = json.loads(json_text(row))
    assert found["at"] == {"2024-05-01": 1, "(1, 'a')": "NaN"}
    assert found["n"] == {"Infinity": 1, "null": 2}  # as values, and as JSON writes them itself
