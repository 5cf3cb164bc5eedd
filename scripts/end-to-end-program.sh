#!/usr/bin/env bash
# Prints the path of the program of the end-to-end tests, built with all other tests: end-to-end-program.sh [CARGO OPTION...]
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace "$@" --no-run --message-format=json 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and "/crates/cli/tests/" in message["target"]["src_path"]:
        print(message["executable"])
        break
else:
    sys.exit("end-to-end-program: it was not built")
'
