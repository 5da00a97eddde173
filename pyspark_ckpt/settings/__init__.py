"""The settings of a query: their keys, values and files. Import them from here."""

from pyspark_ckpt.settings.keys import (
    HAND_OVER,
    INTERNAL_SETTINGS,
    KEYS,
    PARALLELISM,
    SETTINGS,
    SHUFFLE_PARTITIONS,
    WATERMARK_PER_OPERATOR,
    Setting,
)
from pyspark_ckpt.settings.modes import (
    ClaimMode,
    HandOver,
    HighAvailability,
    MetricsReporter,
    Retention,
)
from pyspark_ckpt.settings.settings import (
    EPOCH_KEY,
    PREFIX,
    RUNTIME_KEY,
    Materialization,
    Settings,
    is_ckpt_option,
    read_conf_file,
    read_settings,
)
from pyspark_ckpt.settings.values import MAX_INLINE_BYTES, MIN_MEMORY_BYTES

__all__ = [
    "EPOCH_KEY", "HAND_OVER", "INTERNAL_SETTINGS", "KEYS", "MAX_INLINE_BYTES", "MIN_MEMORY_BYTES",
    "PARALLELISM", "PREFIX", "RUNTIME_KEY", "SETTINGS", "SHUFFLE_PARTITIONS",
    "WATERMARK_PER_OPERATOR", "ClaimMode", "HandOver", "HighAvailability", "Materialization",
    "MetricsReporter", "Retention", "Setting", "Settings", "is_ckpt_option", "read_conf_file",
    "read_settings",
]  # fmt: skip
