#!/usr/bin/env bash
# The tests that need a CUDA device, then all the others on that machine. PYTHON chooses the interpreter.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$python" -m pytest -p no:cacheprovider -m gpu tests
gpu=$?
"$python" -m pytest -p no:cacheprovider tests --deselect tests/core/test_version.py
rest=$?
exit $((gpu | rest))
