"""One running query: start, coordinator, requests, drain."""
