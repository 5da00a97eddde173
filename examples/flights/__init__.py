"""Delays that aircraft carry from one leg to the next: the New York flights of 2013 as a stream.

``python -m examples.flights`` runs the job to mid-year, takes a savepoint while it runs, goes on to
the year's end, forks it from the savepoint with changed logic, and checks both results against
plain pandas.
"""
