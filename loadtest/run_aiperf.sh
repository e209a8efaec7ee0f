#!/bin/sh
# Runs NVIDIA's aiperf against a running server: streamed chats of fixed lengths from several concurrent clients.
#
#   pip install aiperf           # in a separate environment: Headrace does not depend on it
#   headrace serve &
#   loadtest/run_aiperf.sh http://127.0.0.1:8000 headrace-quickstart service/quickstart/model 60
set -eu
url=$1 model=$2 requests=${4:-60}
tokenizer=$(cd "$3" && pwd)
output=$(mktemp -d)
trap 'rm -r "$output"' EXIT
aiperf profile --url "$url" --model "$model" --tokenizer "$tokenizer" --endpoint-type chat --streaming \
    --concurrency 4 --request-count "$requests" --warmup-request-count 2 --random-seed 1 \
    --prompt-input-tokens-mean 64 --prompt-input-tokens-stddev 0 --prompt-output-tokens-mean 32 \
    --extra-inputs ignore_eos:true --ui simple --output-artifact-dir "$output" --no-auto-plot
