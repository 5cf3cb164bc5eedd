#!/usr/bin/env bash
# Builds all tests, and prints the path of the end-to-end test program: end-to-end-program.sh [CARGO OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace "$@" --no-run --message-format=json 2>/dev/null | python3 -c '
import json, sys
found = None
# To the end: cargo fails if its output is closed.
for line in sys.stdin:
    message = json.loads(line)
    target = message.get("target", {})
    if message.get("executable") and target["kind"] == ["test"] and "/crates/cli/" in target["src_path"]:
        found = message["executable"]
print(found or sys.exit("end-to-end-program: cargo did not build it; run cargo test --no-run"))
'
