"""Modes that settings choose. Their values are the texts in settings and stored files."""

from __future__ import annotations

from enum import Enum

from pyspark_ckpt.errors import ConfigurationError


class Retention(str, Enum):
    """When the checkpoints of a query are deleted; Flink's ``ExternalizedCheckpointRetention``."""

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"

    __str__ = str.__str__


class ClaimMode(str, Enum):
    """Whether a restored query deletes what it was restored from; Flink's ``RecoveryClaimMode``."""

    NO_CLAIM = "NO_CLAIM"
    CLAIM = "CLAIM"

    __str__ = str.__str__

    @classmethod
    def of_argument(cls, name: str) -> ClaimMode:
        """Return the mode that the argument ``claimMode`` names."""
        try:
            return cls(name)
        except ValueError:
            raise ConfigurationError(
                f"claimMode is {name!r}: give one of {', '.join(cls)}"
            ) from None


class HighAvailability(str, Enum):
    """What stores which checkpoints are complete; Flink's ``HighAvailabilityMode``."""

    NONE = "none"
    ZOOKEEPER = "zookeeper"
    KUBERNETES = "kubernetes"

    __str__ = str.__str__


class HandOver(str, Enum):
    """The form in which Spark's workers hand rows over to an operator and take its output."""

    AUTO = "auto"
    ARROW = "arrow"
    PACKED = "packed"

    __str__ = str.__str__


class MetricsReporter(str, Enum):
    """What a query's metrics are reported to; also the names of the extras with the libraries."""

    PROMETHEUS = "prometheus"
    OPENTELEMETRY = "opentelemetry"

    __str__ = str.__str__
