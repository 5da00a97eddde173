"""Values of Spark SQL: the table of types, and what users give for values of each type."""
