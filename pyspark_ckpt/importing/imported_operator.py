"""What an operator of a stopped query of Spark becomes here."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pyspark_ckpt.errors import PlanError
from pyspark_ckpt.importing.group_state import Mapper


@dataclass(frozen=True, slots=True)
class ImportedOperator:
    """What one operator of a stopped query of Spark becomes; given to :func:`import_checkpoint`.

    Parameters
    ----------
    processor : StatefulProcessor
        The processor that Spark's operator ran. For ``applyInPandasWithState``, the processor that
        replaces its function.
    uid : str
        The operator's uid in the restored query.
    mapper : callable, optional
        Only for ``applyInPandasWithState``, as for :func:`import_checkpoint`.
    time_mode : str, optional
        Only for ``applyInPandasWithState``, as for :func:`import_checkpoint`.

    Raises
    ------
    PlanError
        If `uid` is empty.

    Examples
    --------
    >>> ckpt.ImportedOperator(Count(), "count").uid
    'count'
    """

    processor: StatefulProcessor
    uid: str
    mapper: Mapper | None = None
    time_mode: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.uid, str) or not self.uid.strip():
            raise PlanError(f"uid is {self.uid!r}: give the operator a stable name")
