"""The ``checkpointLocation`` that a query starts at: what is done there, and who may change it."""
