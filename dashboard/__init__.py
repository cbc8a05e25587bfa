"""The dashboard: a process of its own, fed by the log, that owns the DuckDB file. Its death delays no token.

    process.py     the process, low in priority; serving.py, what it does on its UNIX socket   <- start here
    history.py     the projector in its thread, and questions to it in a few others
    news.py        which tables change, told to every page that listens
    history_api.py the history as JSON, for programs
    app.py         what is answered over the socket
    pages.py       what all pages share: frame, links, safety headers   <- start here for a page
    templates/     their HTML; static/ their scripts and styles, served by assets.py
    units.py       values as people read them; words.py: what happened and why, in sentences

Invariant: nothing here imports `router` or `replay`.
"""
