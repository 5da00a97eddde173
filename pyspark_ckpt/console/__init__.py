"""Pages over the directories of queries: what the directories say, as models, HTML and a server.

A page: `opening`, `server`, `access`, a module of `data` for the model, `html/pages` for the text.
"""
