#!/usr/bin/env bash
# Compares the model with implementations of others, in an environment of their own. See tests/oracles/README.md.
#   bash .ci/oracles.sh FOLDER
# Says "not run" and why where the environment cannot be made; a comparison beyond its limit is a failure.
set -euo pipefail
folder=$(realpath -m "${1:?usage: oracles.sh FOLDER}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

works() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; }

python=
for candidate in "${PYTHON311:-}" $(type -ap python3.11) "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11*/bin/python3.11; do
    if [ -n "$candidate" ] && works "$candidate"; then python=$candidate && break; fi
done
if [ -z "$python" ]; then echo "oracles: not run: no Python 3.11 is here" && exit 0; fi

pip() { "$folder/bin/python" -m pip --disable-pip-version-check --quiet "$@" 2>"$folder/pip.log"; }
if ! works "$folder/bin/python"; then rm -rf "$folder" && "$python" -m venv "$folder"; fi
if ! { pip install -r tests/oracles/requirements.txt && pip install --no-deps nemo-automodel==0.7.0; }; then
    echo "oracles: not run: $(grep -m1 '^ERROR' "$folder/pip.log" || echo 'pip failed without a message')"
    exit 0
fi
for name in transformers_modules nemo_text nemo_draft nemo_vision; do
    printf '== oracle: %s\n' "$name"
    "$folder/bin/python" "tests/oracles/$name.py"
done
