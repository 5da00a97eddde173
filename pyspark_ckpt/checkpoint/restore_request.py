"""What a query is to be restored from, and on which terms."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark_ckpt.checkpoint.restore_plan import RestoreMigrations, RestorePlan, plan_of
from pyspark_ckpt.checkpoint.restore_source import RestoreSource, open_source
from pyspark_ckpt.settings import NO_CLAIM
from pyspark_ckpt.spark.operators import StatefulOperators


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A restore as the user and the settings want it; see ``restoreFrom``.

    `backend_type`, `source_ids` and `source_names` are those of the query.
    """

    path: str
    claim_mode: str = NO_CLAIM
    allow_non_restored_state: bool = False
    falls_back: bool = False
    migrations: RestoreMigrations = field(default_factory=dict)
    backend_type: str | None = None
    source_ids: tuple[int, ...] | None = None
    source_names: tuple[str, ...] | None = None

    def plan(self, source: RestoreSource, operators: StatefulOperators) -> RestorePlan:
        """Plan the restore from a source that was opened; starts nothing."""
        return plan_of(
            source,
            operators,
            allow_non_restored_state=self.allow_non_restored_state,
            migrations=self.migrations,
            backend_type=self.backend_type,
            source_ids=self.source_ids,
            source_names=self.source_names,
        )


def plan_of_request(request: RestoreRequest, operators: StatefulOperators) -> RestorePlan:
    """Open the source of a request and plan the restore; starts nothing.

    Raises
    ------
    CheckpointNotFoundError, CorruptFileError, UnsafePathError
        If there is none that can be trusted.
    """
    return request.plan(open_source(request.path, falls_back=request.falls_back), operators)
