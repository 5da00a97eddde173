"""What the records say of the run that counts: the one that goes on, and how the last one ended."""

from __future__ import annotations

from pyspark_ckpt.history.run_log import RunEnded, RunNote, RunStarted, RunState, last_run

NOW_MS = 1_000_000


def started(run: str, at_ms: int) -> RunStarted:
    return RunStarted(run_id=run, at_ms=at_ms, query_id="q", started_by=run)


def ended(run: str, at_ms: int, error: str | None = None) -> RunEnded:
    return RunEnded(run_id=run, at_ms=at_ms, error=error)


def note(run: str, at_ms: int) -> RunNote:
    return RunNote(run_id=run, at_ms=at_ms)


def test_a_fenced_second_driver_does_not_hide_the_first() -> None:
    records = [started("a", 1), started("b", 100), ended("b", 200, "fenced")]
    found = last_run(records, note("a", NOW_MS - 1_000), NOW_MS)
    assert (found.state, found.started) == (RunState.RUNNING, records[0])


def test_the_last_run_counts_if_the_one_before_says_no_more() -> None:
    records = [started("a", 1), started("b", 100), ended("b", 200, "no")]
    for newest in (None, note("a", 150), note("b", 190)):
        assert last_run(records, newest, NOW_MS).state is RunState.FAILED
    records.append(ended("a", 300))
    found = last_run(records, note("a", 299), NOW_MS)
    assert found.state is RunState.FAILED
    assert last_run([*records, started("c", NOW_MS)], note("a", 299), NOW_MS).started == started(
        "c", NOW_MS
    )


def test_a_run_that_fails_behind_its_end_has_failed() -> None:
    """As a restart in place that could not begin."""
    records = [started("a", 1), ended("a", 2), ended("a", 3, "the restart failed")]
    found = last_run(records, None, NOW_MS)
    assert (found.state, found.ended) == (RunState.FAILED, records[2])
