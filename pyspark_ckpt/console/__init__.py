"""Pages over the directories of queries: what the directories say, as models, HTML and a server."""
