"""Jobs that use pyspark_ckpt; each is a package run with ``python -m``."""
