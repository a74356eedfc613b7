#!/usr/bin/env bash
# Fails if a file of the checkout is not formatted; prints what to change. `tools/lint --fix` repairs it.
exec "$(readlink -f tools/lint)" --format-only
