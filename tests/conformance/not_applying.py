"""PySpark's tests that do not apply to this library: names, reasons, and how they fail."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class NotApplying:
    """Tests that must fail, and only in the way that is named.

    Parameters
    ----------
    tests
        Names of test methods, in any class, or patterns of ``class::method``.
    reason
        Why the library does not do what they check.
    failure
        A regular expression that matches their failure.
    always
        Whether they must fail; if not, a pass means nothing, because timing decides.
    """

    tests: tuple[str, ...]
    reason: str
    failure: str
    always: bool = True


_READS_STATE = (
    # Spark's metadata of the library's operators has no `operatorProperties`.
    r"the JSON object must be str, bytes or bytearray, not NoneType"
    r"|STDS_INVALID_OPTION_VALUE|assert set\(\n"
)

NOT_APPLYING = (
    NotApplying(
        ("*Parity*::test_transform_with_state_chaining_ops",),
        "It has an aggregation of Spark's own after the operator, which is not supported over "
        "Spark Connect yet.",
        "Spark's own stateful operators",
    ),
    NotApplying(
        ("*CheckpointV2*::test_transform_with_state_chaining_ops",),
        "It has an aggregation of Spark's own after the operator, which is not supported with "
        "state stores in checkpoint format 2 yet.",
        "checkpointFormatVersion above 1 are not supported yet",
    ),
    NotApplying(
        (
            "test_clear_nonexistent_list_state",
            "test_clear_nonexistent_map_state",
            "test_clear_nonexistent_value_state",
            "test_delete_if_exists_nonexistent",
            "test_delete_timer_raises_error_in_none_mode",
            "test_list_timers_raises_error_in_none_mode",
            "test_timer_cannot_be_registered_in_past",
            "test_timer_registration_in_none_mode_raises_error",
            "test_timer_registration_raises_error_in_none_mode",
        ),
        "They use the handle of TwsTester between its calls. A harness has a handle in an epoch "
        "only, as a query has; tests/unit checks the same from within a processor.",
        "'ProcessorHarness' object has no attribute 'handle'",
    ),
    NotApplying(
        ("test_transform_with_state_query_restarts",),
        "It ends with Spark's own metrics of state variables; the library's are in "
        "recentOperatorProgress.",
        "KeyError: 'numValueStateVars'",
    ),
    NotApplying(
        (
            "test_transform_with_list_state_metadata",
            "test_transform_with_value_state_metadata",
            "test_transform_with_state_restart_with_multiple_rows_init_state",
            "*StateVariable*::test_transform_with_state_with_timers_single_partition",
        ),
        "They read state through Spark's sources `state-metadata` and `statestore`. Spark stores a "
        "handle for each subtask; state is read from a savepoint instead.",
        _READS_STATE,
    ),
    NotApplying(
        (
            "test_transform_with_map_state_metadata",
            "test_transform_with_map_state_metadata_with_init_state",
        ),
        "As those above, but they do so in an epoch without rows only, which may not come before "
        "they stop the query.",
        _READS_STATE,
        always=False,
    ),
)


def entry_of(test: str, of: str) -> NotApplying | None:
    """Return the entry of a test method of a class, if it is listed."""
    for entry in NOT_APPLYING:
        if test in entry.tests or any(fnmatch(f"{of}::{test}", each) for each in entry.tests):
            return entry
    return None
