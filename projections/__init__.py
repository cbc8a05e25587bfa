"""Read models of the log in DuckDB: what happened, as tables that can be asked.

    definitions.py   reads sql/: a file per table, with what makes it, feeds it, seeds it and cuts it
    lines.py         complete lines of one stream of the log, in order, from any place on
    columns.py       the columns that lines are read into
    staging.py       lines of a batch as temporary tables, one per type of event
    projector.py     applies lines to tables, live and in a rebuild alike   <- start here
    database.py      the DuckDB file: disposable, set aside when it cannot be used
    sandbox.py       asking a question without being able to touch anything else
    questions.py     reads questions/: questions with a name, a file each
    units.py         times and shares as people read them
    commands.py      `llama-router projections` and `llama-router sql`

Counterpart: `eventlog`, whose lines say everything; nothing here is the only copy of anything. docs/tables.md says what
the tables and their columns mean.

Invariant: nothing here imports `router`, `replay` or `dashboard`.
"""
