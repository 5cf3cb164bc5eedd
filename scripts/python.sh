#!/usr/bin/env bash
# Builds and tests the Python package: python.sh [--locked]
#
# Installs the wheel and the packages for its tests in a virtual environment below target/python, and checks formatting, lints, types,
# containers that the program writes, and regions in jobs. PYTHON names another Python than python3; TAMEIKE names a built program, beside
# which the libraries are. TORCH=1 also installs PyTorch (several gigabytes); without it, processes replace its loader.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly python=${PYTHON:-python3}
readonly target=${CARGO_TARGET_DIR:-$PWD/target}
readonly directory=$target/python
readonly venv=$directory/venv

fail() {
    echo "python: $*" >&2
    exit 1
}

if [ -z "${TAMEIKE:-}" ]; then
    cargo build --quiet --package tameike --package tameike-capi --package tameike-preload "$@"
    export TAMEIKE=$target/debug/tameike
fi

extras=test
[ -z "${TORCH:-}" ] || extras=test,torch
mkdir -p "$directory"
# A change of Python or of the packages makes a new environment.
wanted=$("$python" --version && echo "$extras" && sha256sum python/pyproject.toml)
if [ "$(cat "$directory/wanted" 2>/dev/null)" != "$wanted" ]; then
    echo "python: installing the packages for the tests"
    rm -rf "$venv" "$directory/wanted"
    "$python" -m venv "$venv" || fail "$python cannot create a virtual environment: install python3-venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "./python[$extras]" ||
        fail "pip could not install the packages in python/pyproject.toml: see above"
    echo "$wanted" >"$directory/wanted"
fi
rm -rf "$directory/wheel"
"$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$directory/wheel" ./python
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$directory"/wheel/*.whl

# Keeps all caches out of the source tree.
export PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=$directory/hypothesis RUFF_CACHE_DIR=$directory/ruff MYPY_CACHE_DIR=$directory/mypy
export PATH=$venv/bin:$PATH
cd python
ruff format --check .
ruff check .
mypy src
trap 'rm -rf "$directory/tests"' EXIT
pytest --quiet --numprocesses=auto -p no:cacheprovider --basetemp="$directory/tests"
