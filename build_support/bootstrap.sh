#!/usr/bin/env bash
# All set-up of a fresh checkout in one command. Touches nothing outside it: no system package, no home folder.
#   bash build_support/bootstrap.sh demo    judge this host, build the reference target, generate with a tiny model
#   bash build_support/bootstrap.sh test    run every check: lint, types, matrix, C++ tests, Python tests
#   bash build_support/bootstrap.sh python  print the Python 3.12 that would be used
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,6s/^# \{0,1\}//p' "build_support/bootstrap.sh"; }

# A candidate is run, not only found: a version manager's stand-in on PATH may end with "command not found".
works() {
    "$1" -c 'import os, sys, sysconfig, venv
sys.exit(not (sys.version_info[:2] == (3, 12)
              and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in "${PYTHON312:-}" $(type -ap python3.12) $(type -ap python3) \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3.12 /opt/python/cp312-cp312/bin/python \
        "$HOME"/.local/share/uv/python/cpython-3.12*/bin/python3.12; do
        if [ -n "$candidate" ] && [ -x "$candidate" ] && works "$candidate"; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    cat >&2 <<'END'
DI303: no Python 3.12 with its headers was found
  why: looked at $PYTHON312, python3.12 and python3 on PATH, pyenv's and uv's versions, /opt/python
  fix: Ubuntu 24.04: sudo apt-get install python3.12-venv python3.12-dev; elsewhere: uv python install 3.12
END
    return 1
}

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

# .venv with the engine for the reference target, built from this checkout and editable.
environment() {
    local python
    python=$(find_python)
    if ! works .venv/bin/python; then
        rm -rf .venv
        "$python" -m venv .venv
    fi
    pip install --quiet -r build_support/requirements-build.txt "$@"
    DEEPINFER_ACCELERATOR=cpu pip install --quiet --no-build-isolation --no-deps -e .
}

probe_hosts() {
    local status record
    for record in "" tests/hosts/b200_driver570_cuda13.json tests/hosts/h20_3e_x4.json; do
        if [ -z "$record" ]; then printf '== this host\n'; else printf '\n== a recorded host: %s\n' "$record"; fi
        status=0
        "$1" -m deepinfer.probe ${record:+--replay "$record"} || status=$?
        printf '   (exit code %d)\n' "$status"
        case "$status" in 0 | 3 | 4 | 5 | 6 | 7) ;; *) return "$status" ;; esac
    done
}

demo() {
    local python
    python=$(find_python)
    probe_hosts "$python"
    printf '\n== the reference target, built for this CPU and torch (some minutes the first time)\n'
    environment -c build_support/requirements-dev.txt numpy torch safetensors tokenizers
    export DEEPINFER_ACCELERATOR=cpu
    .venv/bin/python -m deepinfer.artifact show
    .venv/bin/python -m deepinfer.artifact verify
    printf '\n== one dequantized row of it\n'
    .venv/bin/python examples/dequantize.py
    printf '\n== tokens of a tiny model: random weights, so they mean nothing, and are the same on every run\n'
    if [ ! -e build/tiny/config.json ]; then
        .venv/bin/python -m deepinfer.checkpoint make-tiny build/tiny --seed 1
    fi
    .venv/bin/python examples/offline_inference.py build/tiny
}

run_tests() {
    environment -r build_support/requirements-dev.txt
    export DEEPINFER_ACCELERATOR=cpu
    .venv/bin/python -m ruff check .
    .venv/bin/python -m ruff format --check .
    .venv/bin/python -m mypy
    .venv/bin/python -m deepinfer.matrix render --check
    .venv/bin/python -m build_support.native_tests
    .venv/bin/python -m pytest "$@"
}

case "${1:-}" in
    demo) demo ;;
    test) shift && run_tests "$@" ;;
    python) find_python ;;
    -h | --help) usage ;;
    *)
        printf 'DI001: bootstrap.sh takes one of: demo, test, python\n  fix: bash build_support/bootstrap.sh --help\n' >&2
        exit 2
        ;;
esac
