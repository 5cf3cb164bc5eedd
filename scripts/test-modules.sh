#!/usr/bin/env bash
# Runs all tests in top-level modules of a test program: test-modules.sh PROGRAM "MODULE..." [OPTION...]
set -euo pipefail
program=$1
modules=$2
shift 2
pattern=^\(${modules// /|}\)::
# libtest's own filters match anywhere in a name.
mapfile -t names < <("$program" --list --format terse | sed -n 's/: test$//p' | grep -E "$pattern")
[ "${#names[@]}" -gt 0 ] || { echo "test-modules: no tests in: $modules"; exit 1; }
exec "$program" --exact "${names[@]}" "$@"
