#!/usr/bin/env bash
# The papers' figures in their full forms, the Llama-8B shape on one CUDA device. A scenario takes 10 to 130 seconds and
# is written as it ends; those of one call share the loaded model where their block size is the same.
#   PYTHON     the interpreter (python3)      OUT      the folder to write to (figures)
#   SCENARIOS  which ones (all)               LIMIT_S  seconds after which a scenario is given up (600)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
# shellcheck disable=SC2086  # names are words
exec "$python" -m loadtest.scenarios ${SCENARIOS:-} --form full --out "${OUT:-figures}" --limit-s "${LIMIT_S:-600}"
