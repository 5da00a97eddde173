"""One run of one contender, checked: its data, its session, its operator and its time."""
