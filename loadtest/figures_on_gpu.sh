#!/usr/bin/env bash
# The papers' figures in their full form: the Llama-8B shape on one CUDA device. A scenario takes 10 to 130 seconds; its
# figure is written when it ends. Within a call, scenarios with the same block size share the loaded model.
#   PYTHON     the interpreter (python3)      OUT      folder for the figures (figures)
#   SCENARIOS  scenarios to run (all)         LIMIT_S  limit per scenario in seconds (600)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
# shellcheck disable=SC2086  # names are words
exec "$python" -m loadtest.scenarios ${SCENARIOS:-} --form full --out "${OUT:-figures}" --limit-s "${LIMIT_S:-600}"
