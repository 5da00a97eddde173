"""The results, as Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.reports.markdown_table import table
from benchmarks.reports.ratios import Spread
from benchmarks.savepoint.copies import FORMATS, Round
from benchmarks.savepoint.load import Disturbance

LIMITS = {
    ("take", "native"): 2.0,
    ("restore", "native"): 3.0,
    ("take", "canonical"): 10.0,
    ("restore", "canonical"): 10.0,
}
_MOST = 2.0
_TEXT = (
    "A savepoint holds a count and {note_bytes} random bytes per key. *Copying* is a plain copy of "
    "the savepoint's files in the same run: read, write, fsync, one file after the other, no "
    "digests. *Restoring* lasts from `start()` to its return: all files are copied, Spark's own "
    "state store is written. The first epoch after it, over one key in a hundred, builds the "
    "local copies. *At rest* is the same with {small:,} keys, turn by turn: what Spark and a few "
    "jobs take, whatever the size. A ratio is that of the time beyond this; the whole time over "
    "the copying is given next to it. The state of every fork was compared with the original's, "
    "entry by entry, and its output with pandas. Median of the repetitions (lowest to highest)."
)

_LOAD_TEXT = (
    "A query that is busy for seven tenths of the time: a file arrives at an interval, each is an "
    "epoch. *Longest* is the longest epoch that a savepoint overlapped, over the median of those "
    "before; the limit is {most:g}. *Delay* is the longest time from the arrival of a file to the "
    "commit of its epoch, before and during it; *recovered* the time from the end of the savepoint "
    "until a commit is no later than the latest before, if one of the next epochs is. Output was "
    "compared with pandas, every savepoint with its digests."
)


@dataclass
class Results:
    """All measurements.

    Rounds are by backend and format: with the requested keys, and with few.
    """

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    rounds: dict[tuple[str, str], list[Round]] = field(default_factory=dict)
    at_rest: dict[tuple[str, str], list[Round]] = field(default_factory=dict)
    disturbances: dict[str, list[Disturbance]] = field(default_factory=dict)

    def verdicts(self) -> list[dict[str, Any]]:
        """Return each limit with the ratios of the repetitions."""
        found = []
        for (what, savepoint_format), limit in LIMITS.items():
            for turn in self.rounds:
                if turn[1] == savepoint_format:
                    net, whole = self._ratios(turn, what)
                    found.append(
                        {
                            "what": f"{what}, {savepoint_format}, {turn[0]}",
                            "limit": limit,
                            "ratio": net,
                            "whole": whole,
                            "reached": net.median <= limit,
                        }
                    )
        return found

    def _ratios(self, turn: tuple[str, str], what: str) -> tuple[Spread, Spread]:
        rest = median(getattr(each, what) for each in self.at_rest[turn])
        rounds = self.rounds[turn]
        net = [(getattr(each, what) - rest) / each.copy for each in rounds]
        return Spread.of(net), Spread.of([getattr(each, what) / each.copy for each in rounds])

    def as_json(self) -> dict[str, Any]:
        """Return all measured figures."""

        def by_turn(rounds: Mapping[tuple[str, str], Sequence[Round]]) -> dict[str, Any]:
            return {", ".join(turn): [asdict(each) for each in of] for turn, of in rounds.items()}

        figures = {
            "limits": [
                {**each, "ratio": each["ratio"].as_json(), "whole": each["whole"].as_json()}
                for each in self.verdicts()
            ],
            "rounds": by_turn(self.rounds),
            "at_rest": by_turn(self.at_rest),
            "under_load": {
                backend: [{**asdict(each), "ratio": each.ratio} for each in of]
                for backend, of in self.disturbances.items()
            },
        }
        measured = {name: figure for name, figure in figures.items() if figure}
        return {"settings": dict(self.settings), "machine": dict(self.machine), **measured}

    def markdown(self) -> str:
        """Return the tables."""
        machine = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        lines = ["# Savepoints", "", f"Settings: {settings}.", "", f"Machine: {machine}."]
        if self.rounds:
            lines += ["", "## Copies", ""]
            lines += [_TEXT.format(note_bytes=self.settings["note bytes"], small=self._small()), ""]
            lines += [self._verdict(each) for each in self.verdicts()]
            lines += ["", *table(self._rows())]
        if self.disturbances:
            lines += ["", *self._load()]
        return "\n".join([*lines, ""])

    def _small(self) -> int:
        return int(self.settings["keys at rest"])

    @staticmethod
    def _verdict(each: Mapping[str, Any]) -> str:
        reached = "reached" if each["reached"] else "NOT reached"
        return (
            f"- {each['what']}: {each['ratio'].text(2)} times the copying, limit "
            f"{each['limit']:g}: {reached}; with what it takes at rest {each['whole'].text(2)}"
        )

    def _rows(self) -> list[list[str]]:
        header = ["backend, format", "MB", "files", "copying s", "take s", "at rest", "restore s"]
        rows = [[*header, "at rest", "first epoch s", "at rest"]]
        for turn, rounds in self.rounds.items():
            rest = self.at_rest[turn]
            rows.append(
                [
                    ", ".join(turn),
                    f"{rounds[0].bytes / 1e6:.0f}",
                    str(rounds[0].files),
                    _text(rounds, lambda each: each.copy),
                    _text(rounds, lambda each: each.take),
                    _text(rest, lambda each: each.take),
                    _text(rounds, lambda each: each.restore),
                    _text(rest, lambda each: each.restore),
                    _text(rounds, lambda each: each.first_epoch),
                    _text(rest, lambda each: each.first_epoch),
                ]
            )
        return rows

    def _load(self) -> list[str]:
        lines = [
            "## Under load",
            "",
            _LOAD_TEXT.format(most=_MOST),
            "",
        ]
        rows = [
            ["savepoint", "took s", "median before ms", "epochs meanwhile ms", "longest",
             "delay before ms", "delay ms", "recovered s"]
        ]  # fmt: skip
        for backend, found in self.disturbances.items():
            rows += [_disturbance(backend, each) for each in found]
        return [*lines, *table(rows)]


def in_turn(number: int) -> Sequence[str]:
    """Return the formats in the order of a repetition."""
    return FORMATS if number % 2 == 0 else FORMATS[::-1]


def _disturbance(backend: str, each: Disturbance) -> list[str]:
    first = ", the session's first" if each.is_first else ""
    return [
        f"{each.format}, {backend}{first}",
        f"{each.seconds:.1f}",
        f"{median(each.quiet_ms):.0f}",
        " ".join(map(str, each.epochs_ms)),
        f"{each.ratio:.2f}",
        f"{each.quiet_delay_ms:.0f}",
        f"{each.delay_ms:.0f}",
        "-" if each.recovered_seconds is None else f"{each.recovered_seconds:.1f}",
    ]


def _text(rounds: Sequence[Round], figure: Callable[[Round], float]) -> str:
    return Spread.of([figure(each) for each in rounds]).text(2)
