"""What the library reads from a query over Spark Connect."""
