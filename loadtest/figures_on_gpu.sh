#!/usr/bin/env bash
# The papers' figures in their full forms, the Llama-8B shape on one CUDA device: about nine minutes for all.
#   PYTHON     the interpreter (python3)      OUT    the folder to write to (figures)
#   SCENARIOS  which ones (those that say most; "all" for all)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
scenarios=${SCENARIOS:-adaptivellm_fig9 adaptivellm_table3 adaptivellm_fig8 overhead_table pagedattention_fig16
    pagedattention_fig15 orca_fig9 pagedattention_fig2 pagedattention_fig12}
[ "$scenarios" = all ] && scenarios=
# shellcheck disable=SC2086  # names are words
exec "$python" -m loadtest.scenarios $scenarios --form full --out "${OUT:-figures}"
