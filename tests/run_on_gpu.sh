#!/usr/bin/env bash
# Runs the tests that need a CUDA device, then all others on that machine, then compiles every tile.
# PYTHON: the interpreter (python3).
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
"$python" -m pytest -p no:cacheprovider -m gpu tests
gpu=$?
"$python" -m pytest -p no:cacheprovider tests --deselect tests/core/test_version.py
rest=$?
TEST_EXAMPLES=10 "$python" -m pytest -p no:cacheprovider tests/kernels/test_sm90_compile.py
compiled=$?
exit $((gpu | rest | compiled))
