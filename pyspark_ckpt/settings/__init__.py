"""The settings of a query: their keys, values and files. Import them from here."""

from pyspark_ckpt.settings.conf_file import read_conf_file
from pyspark_ckpt.settings.settings import (
    CLAIM,
    CLAIM_MODES,
    DELETE_ON_CANCELLATION,
    EPOCH_KEY,
    KEYS,
    NO_CLAIM,
    NO_EXTERNALIZED_CHECKPOINTS,
    PARALLELISM,
    PREFIX,
    RETAIN_ON_CANCELLATION,
    RUNTIME_KEY,
    SETTINGS,
    ZOOKEEPER,
    Materialization,
    Setting,
    Settings,
    is_ckpt_option,
    read_settings,
)
from pyspark_ckpt.settings.values import MAX_INLINE_BYTES, MIN_MEMORY_BYTES

__all__ = [
    "CLAIM", "CLAIM_MODES", "DELETE_ON_CANCELLATION", "EPOCH_KEY", "KEYS", "MAX_INLINE_BYTES",
    "MIN_MEMORY_BYTES", "NO_CLAIM", "NO_EXTERNALIZED_CHECKPOINTS", "PARALLELISM", "PREFIX",
    "RETAIN_ON_CANCELLATION", "RUNTIME_KEY", "SETTINGS", "ZOOKEEPER", "Materialization", "Setting",
    "Settings", "is_ckpt_option", "read_conf_file", "read_settings",
]  # fmt: skip
