#!/usr/bin/env bash
# Makes the mosaic without and with Tameike, and compares the pixels.
# usage: run.sh [DIR]    (default: ./mosaic-run; replaces the results of earlier runs in it)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(realpath -m "${1:-mosaic-run}")
nodes=${NODES:-4}
tiles=${TILES:-25}
export PYTHONDONTWRITEBYTECODE=1

if [ -e "$work" ] && [ ! -e "$work/.mosaic-run" ]; then
    echo "run.sh: $work exists and is not from an earlier run: name another directory" >&2
    exit 2
fi
rm -rf "$work"
mkdir -p "$work/shared" "$work/plain" "$work/scratch"
touch "$work/.mosaic-run"

"$here/prepare.py" "$work/shared" --tiles "$tiles"
cp -r "$work/shared/input" "$work/plain/input"

echo
echo "--- without Tameike"
TAMEIKE_CACHE="$work/plain" TAMEIKE_SHARED="$work/scratch" "$here/mosaic.py"

echo
echo "--- with Tameike: tameike run --local $nodes --shared $work/shared --verify -- mosaic.py"
tameike run --local "$nodes" --shared "$work/shared" --verify --receipt "$work/receipt.json" -- "$here/mosaic.py"

echo
"$here/compare.py" "$work/plain/output" "$work/shared/output"
echo "picture: $work/shared/output/mosaic.png"
echo "receipt: $work/receipt.json"
