#!/usr/bin/env bash
# Everything that needs two CUDA devices of one host, in about 20 minutes: the tests; all-reduces beside NCCL's; the
# serving figures on one device, on two, and in two stages; how busy the stages are; ORCA's figures 9 to 11 with its 13B
# model's shape.
#   PYTHON  the interpreter (python3)           PORT  the servers' port (8009)
#   PARTS   parts to run, of: tests sums one tensor stages both busy orca (all but both)
#   TENSOR  ranks per stage in sums, tensor, both and orca (2)     STAGES  stages in stages, both, busy and orca (2)
#           With four devices: TENSOR=4 PARTS="tests sums tensor", then STAGES=4 PARTS=stages, then PARTS=both (2 x 2).
#   PYTEST  further pytest options, such as -n 5 (pytest-xdist): the tests start servers, which first compile kernels
#   OUT     folder for each part's output
#   MODEL, ORCA_MODEL, SERVER_ARGS, NUM, RATES, BATCHES  for a trial without GPUs
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
port=${PORT:-8009}
parts=${PARTS:-tests sums one tensor stages busy orca}
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
model=${MODEL:-loadtest/shapes/llama-8b}
orca_model=${ORCA_MODEL:-loadtest/shapes/llama-13b}
num=${NUM:-1000}
url=http://127.0.0.1:$port
tensor=(--tensor-parallel-size "${TENSOR:-2}")
staged=(--pipeline-parallel-size "${STAGES:-2}")
failed=0

part() { # name, then a command, whose output is kept in a file of that name
    echo "== $1"
    "${@:2}" 2>&1 | tee "$out/$1.txt" || { failed=1 && echo "== $1 FAILED"; }
}

serving() { # name of the file, then options of the server
    "$python" -m loadtest.serving_table llama-8b --http-only --out "$out/$1.jsonl" --rows decode-1 decode-64 decode-256 \
        "prefill, 300 at once" "orca, 1000 at once" "sharegpt, 1000 at once" --server-args "${@:2}"
}

with_server() { # model, a function, then options of the server
    # shellcheck disable=SC2086  # options are words
    "$python" -m service serve "$1" --load-format dummy --port "$port" ${SERVER_ARGS:-} "${@:3}" >"$out/server.log" 2>&1 &
    local server=$! status=0
    until curl -sf "$url/ready" >/dev/null || ! kill -0 $server 2>/dev/null; do sleep 0.5; done
    "$2" || status=1
    kill $server
    wait $server || { status=1 && tail -n 20 "$out/server.log"; }
    return $status
}

load() { # label, workload, number of requests, then more options: one line
    "$python" -m loadtest run --base-url "$url" --workload "$2" --num-prompts "$3" "${@:4}" --label "$1" 2>/dev/null |
        grep -E "^(requests completed|duration, s|requests/s|TPOT, ms: median|.*latency.*: median) " | sed "s|^|$1: |"
    return "${PIPESTATUS[0]}"
}

busy() { # prints the share of a burst's time in which each stage's device computed
    local before burst after seconds
    # The warm-up is a load of its own: what it computes is no part of the burst.
    load warm-up orca 1 --warmup 0 --seed 6 >/dev/null || return 1
    before=$(stage_seconds)
    burst=$(load "orca burst" orca "$num" --arrival at-once --warmup 0 --seed 7) || return 1
    after=$(stage_seconds)
    echo "$burst"
    seconds=$(grep -oP ' duration, s +\K\S+' <<<"$burst") || return 1
    awk -v all="${seconds//,/}" 'NR == FNR { was[$1] = $2; next } { print $1, ($2 - was[$1]) / all, "busy" }' \
        <(echo "$before") <(echo "$after")
}

stage_seconds() {
    curl -s "$url/metrics" | grep ^headrace_stage_compute_seconds_total
}

orca() { # figures 9 (equal batches), 10 (Poisson) and 11 (equal requests)
    local seed=100 size length rate
    for length in 32 128; do
        for size in ${BATCHES:-1 8 16 32}; do
            seed=$((seed + 1))
            load "figure 9, $length in, batch of $size" "fixed-${length}x32" "$size" --arrival at-once --seed $seed || return 1
        done
    done
    for rate in ${RATES:-10 20 40 60}; do
        seed=$((seed + 2))
        load "figure 10, $rate/s" orca $((num / 4)) --request-rate "$rate" --seed $seed || return 1
        load "figure 11, $rate/s" fixed-128x64 $((num / 4)) --request-rate "$rate" --seed $((seed + 1)) || return 1
    done
}

for name in $parts; do
    [[ " tests sums one tensor stages both busy orca " == *" $name "* ]] || { echo "PARTS: there is no $name" >&2 && exit 2; }
done
# shellcheck disable=SC2086  # options are words
[[ $parts == *tests* ]] && part tests "$python" -m pytest -vv -p no:cacheprovider -m gpu -rs ${PYTEST:-} \
    tests/kernels/test_one_shot_all_reduce.py tests/runner/test_stage_step.py tests/distributed/test_rank_device.py \
    tests/equivalence/test_tensor_parallel.py tests/equivalence/test_pipeline_parallel.py \
    tests/equivalence/test_transformers_ranks.py tests/equivalence/test_adapter_ranks.py \
    tests/equivalence/test_training_ranks.py tests/equivalence/test_training_stages.py \
    tests/e2e/test_tensor_parallel.py tests/e2e/test_pipeline_parallel.py tests/e2e/test_several_gpus.py \
    tests/e2e/test_embeddings.py tests/e2e/test_lora.py
[[ $parts == *sums* ]] && part sums "$python" -m loadtest.bench.all_reduce --ranks "${TENSOR:-2}"
[[ $parts == *one* ]] && part one serving one
[[ $parts == *tensor* ]] && part tensor serving tensor "${tensor[@]}"
[[ $parts == *stages* ]] && part stages serving stages "${staged[@]}"
[[ $parts == *both* ]] && part both serving both "${tensor[@]}" "${staged[@]}"
[[ $parts == *busy* ]] && part busy with_server "$model" busy "${staged[@]}"
if [[ $parts == *orca* ]]; then
    part orca-tensor with_server "$orca_model" orca "${tensor[@]}"
    part orca-stages with_server "$orca_model" orca "${staged[@]}"
fi
echo "== in $out"
exit $failed
