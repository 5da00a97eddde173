"""Jobs that use pyspark_ckpt. Run each package with ``python -m``."""
