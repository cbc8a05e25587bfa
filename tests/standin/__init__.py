"""A llama-server that misbehaves on order; the counterpart of `router/replicas.py` and `router/relay.py` in tests.

`tests/standin/llama-server` takes llama-server's arguments and answers as llama-server does, without a model. What it
does wrong is written in a script (`script.py`): in `STANDIN_*` variables, in the JSON file given as the model, or under
the key `standin` of a request. What really happened is written in its own ledger (`ledger.py`), so that the log of the
product under test is never its own judge.

Start with `script.py` for what it can be told, with `fixtures.py` for how a test starts a router on it.
The server itself imports the standard library only and no asyncio: it answers within 100 ms of its start.
"""
