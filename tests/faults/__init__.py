"""What goes wrong between a router and llama-servers, provoked with the stand-in and seen from outside.

Each test tells one story of users of such routers. The router runs as a process of its own; what really happened is
asked of the stand-ins' ledger, what the router says happened of its log. `checks.py` holds what must be true of every
run whatever the story.
"""
