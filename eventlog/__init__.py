"""The log: its words (`events`, `settings`), its lines (`codec`), its one writer and its readers.

Start with `eventlog.events`: every word that the project uses is defined there once.

Invariant: nothing here imports `router`, `replay`, `projections` or `dashboard`.
"""
