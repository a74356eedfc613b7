#!/usr/bin/env bash
# Copies the generated page into the checkout: bazel run //ir/ops:update_docs
set -euo pipefail
install -m 644 "$1" "$BUILD_WORKSPACE_DIRECTORY/docs/operators.md"
echo "updated docs/operators.md"
