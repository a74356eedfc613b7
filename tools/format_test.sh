#!/usr/bin/env bash
# Fails if a file of the checkout is not formatted, and lists such files. `tools/lint --fix` formats them.
exec "$(readlink -f tools/lint)" --format-only
