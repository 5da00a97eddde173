"""Rules of fraud that change while the query runs: broadcast state.

Each subtask has all rules. A rule applies to the payments that come with it and after it. The
payments are made up, with a fixed seed, because no package has real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import pyspark_ckpt as ckpt

WINDOW_S = 60
PAYMENT = "card string, second long, amount long"
RULE = "rule string, most long"
ALERT = "card string, second long, rule string"


class Fraud(StatefulProcessor):
    """Alert if one payment is large, or if a card pays too often within a minute."""

    def init(self, handle: Any) -> None:
        self.rules = handle.getBroadcastState("rules", "rule string", "most long")
        self.recent = handle.getListState("recent", "second long")

    def handleBroadcastRows(self, rows: Iterator[Row], timerValues: Any) -> None:
        for row in rows:
            self.rules.updateValue((row.rule,), (row.most,))

    def handleInputRows(
        self, key: tuple[str], rows: Iterator[Row], timerValues: Any
    ) -> Iterator[Row]:
        (most_amount,) = self.rules.getValue(("amount",)) or (None,)
        (most_payments,) = self.rules.getValue(("payments a minute",)) or (None,)
        recent = [second for (second,) in self.recent.get()]
        for row in sorted(rows, key=lambda row: row.second):
            recent = [second for second in recent if second > row.second - WINDOW_S]
            recent.append(row.second)
            if most_amount is not None and row.amount > most_amount:
                yield Row(card=key[0], second=row.second, rule="amount")
            if most_payments is not None and len(recent) > most_payments:
                yield Row(card=key[0], second=row.second, rule="payments a minute")
        self.recent.put([(second,) for second in recent])

    def close(self) -> None: ...


def payments(rows: int = 4000, cards: int = 50) -> pd.DataFrame:
    chance = np.random.default_rng(7)
    numbers = chance.integers(0, cards, rows)
    seconds = np.sort(chance.integers(0, 3600, rows))
    amounts = chance.lognormal(4, 1, rows).astype(int)
    return pd.DataFrame({"card": [f"c{n}" for n in numbers], "second": seconds, "amount": amounts})


def expected_alerts(rows: pd.DataFrame, rules: dict[str, int]) -> set[tuple[str, int, str]]:
    """Compute what the processor should emit; `rows` has the earlier payments too."""
    large = rows[rows["amount"] > rules["amount"]]
    alerts = {(card, second, "amount") for card, second in large[["card", "second"]].values}
    if "payments a minute" in rules:
        for card, paid in rows.groupby("card")["second"]:
            seconds = paid.to_numpy()
            firsts = np.searchsorted(seconds, seconds - WINDOW_S, side="right")
            often = np.arange(len(seconds)) - firsts + 1 > rules["payments a minute"]
            alerts |= {(card, second, "payments a minute") for second in seconds[often]}
    return alerts


def run(spark: SparkSession, directory: Path) -> None:
    """Pay half an hour with one rule, and half an hour with two."""
    rows = payments()
    first, second = rows[rows["second"] < 1800], rows[rows["second"] >= 1800]
    for name in ("payments", "rules"):
        (directory / name).mkdir()

    def deliver(number: int, part: pd.DataFrame, rules: dict[str, int]) -> None:
        table = pd.DataFrame(rules.items(), columns=["rule", "most"])
        table.to_parquet(directory / "rules" / f"{number}.parquet", index=False)
        part.to_parquet(directory / "payments" / f"{number}.parquet", index=False)

    first_rules = {"amount": 500}
    second_rules = {"amount": 800, "payments a minute": 3}
    deliver(1, first, first_rules)
    rules = spark.readStream.schema(RULE).parquet(str(directory / "rules"))
    paid = spark.readStream.schema(PAYMENT).parquet(str(directory / "payments"))
    alerts = (
        ckpt.key_by(paid, "card")
        .connectBroadcast(rules)
        .transformWithState(Fraud(), ALERT, "Append", "None", uid="fraud")
    )
    writer = ckpt.write_stream(alerts).option("checkpointLocation", str(directory / "location"))
    query = writer.start(str(directory / "alerts"))
    query.processAllAvailable()
    deliver(2, second, second_rules)  # the rules change, the query continues
    query.processAllAvailable()
    query.stop()

    found = spark.read.parquet(str(directory / "alerts")).toPandas()
    print(found.groupby("rule").size().to_string())
    later = {alert for alert in expected_alerts(rows, second_rules) if alert[1] >= 1800}
    expected = expected_alerts(first, first_rules) | later
    assert set(found.itertuples(index=False, name=None)) == expected
    print(f"OK: {len(found):,} alerts for {len(rows):,} payments, as in plain Python")


if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    with TemporaryDirectory() as work:
        run(builder.getOrCreate(), Path(work))
