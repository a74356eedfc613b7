#!/usr/bin/env bash
# $1: the page in the checkout, $2: the page made from the tables
set -uo pipefail
if ! diff -u "$1" "$2" | head -40; then
  echo "docs/operators.md is out of date: run 'bazel run //ir/ops:update_docs' and commit it" >&2
  exit 1
fi
