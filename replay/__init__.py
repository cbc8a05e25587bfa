"""What a log is good for once it is written: verify, explain, postmortem, simulate, tune.

Everything here reads a log and runs the scheduler's own `step` again; nothing here writes to a log that is in use.
Start with `verify`.

Invariant: of the router only `router.scheduler` is imported, never the live service.
"""
