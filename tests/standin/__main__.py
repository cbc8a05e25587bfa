"""`python -m tests.standin`: the stand-in without its wrapper."""

import sys

from tests.standin.server import main

main(sys.argv[1:])
