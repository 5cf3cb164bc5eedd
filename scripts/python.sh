#!/usr/bin/env bash
# The Python package: python.sh [--locked]
#
# Builds its wheel, installs that with what the tests need in a virtual environment below target/python, and checks it there: formatting,
# lints, types, and containers that the program makes. PYTHON names another Python than python3, TAMEIKE a program that is built
# already. With TORCH=1 PyTorch is installed too, which is some gigabytes; without it, processes stand for its loader.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly python=${PYTHON:-python3}
readonly target=${CARGO_TARGET_DIR:-$PWD/target}
readonly place=$target/python
readonly venv=$place/venv

fail() {
    echo "python: $*" >&2
    exit 1
}

if [ -z "${TAMEIKE:-}" ]; then
    cargo build --quiet --package tameike "$@"
    export TAMEIKE=$target/debug/tameike
fi

extras=test
[ -z "${TORCH:-}" ] || extras=test,torch
mkdir -p "$place"
# Another Python, or other needs: another environment.
wanted=$("$python" --version && echo "$extras" && sha256sum python/pyproject.toml)
if [ "$(cat "$place/wanted" 2>/dev/null)" != "$wanted" ]; then
    echo "python: installing what the tests need"
    rm -rf "$venv" "$place/wanted"
    "$python" -m venv "$venv" || fail "$python makes no virtual environment: install python3-venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "./python[$extras]" ||
        fail "pip could not install what python/pyproject.toml names: see above"
    echo "$wanted" >"$place/wanted"
fi
rm -rf "$place/wheel"
"$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$place/wheel" ./python
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$place"/wheel/*.whl

# Nothing is left beside the sources.
export PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=$place/hypothesis RUFF_CACHE_DIR=$place/ruff MYPY_CACHE_DIR=$place/mypy
export PATH=$venv/bin:$PATH
cd python
ruff format --check .
ruff check .
mypy src
trap 'rm -rf "$place/tests"' EXIT
pytest --quiet -p no:cacheprovider --basetemp="$place/tests"
