#!/bin/sh
# A wrapper as people write them: it runs llama-server without exec, so the server is a grandchild of the router
# and a signal to the wrapper alone never reaches it.
"${STANDIN_BINARY:-$(dirname "$0")/llama-server}" "$@"
exit $?
