#!/usr/bin/env bash
# The papers' figures in their full forms, the Llama-8B shape on one CUDA device. A scenario takes one to five minutes,
# the loading of the model among them; those of one call share it where their block size is the same.
#   PYTHON     the interpreter (python3)      OUT    the folder to write to (figures)
#   SCENARIOS  which ones (all)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
# shellcheck disable=SC2086  # names are words
exec "$python" -m loadtest.scenarios ${SCENARIOS:-} --form full --out "${OUT:-figures}"
