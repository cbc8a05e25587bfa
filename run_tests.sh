#!/usr/bin/env bash
# The tests that need a GPU: real llama-server, models of yours (tests/configs.toml), sizes as agents have them.
# Arguments go to pytest. Where nix is, they run in the development shell; else in .venv (make setup).
set -euo pipefail
cd "$(dirname "$0")"
if command -v nix >/dev/null && [ -z "${IN_NIX_SHELL:-}" ] && [ -f flake.nix ]; then
    exec nix develop --command "$0" "$@"
fi
python=.venv/bin/python
[ -x "$python" ] || python=$(command -v python3)
if ! "$python" -c 'import pytest, xllamacpp' 2>/dev/null; then
    echo "run_tests.sh: $python has no pytest or no xllamacpp; 'make setup' makes a .venv that has" >&2
    exit 1
fi
exec "$python" -m pytest -m gpu -rs "$@" tests/weights
