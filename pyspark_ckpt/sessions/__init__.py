"""Classic sessions and Spark Connect: which one a program has, and what differs below the plan."""
