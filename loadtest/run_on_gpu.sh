#!/usr/bin/env bash
# Benchmarks on a machine with a CUDA device, with dummy weights: every kernel, the engine without HTTP, and a few
# workloads over HTTP. Ends with a short table: ours, vLLM's figure, the goal, the limit.
#   PYTHON   the interpreter (python3)        PORT   the server's port (8009)
#   PARTS    parts to run, of: kernels latency throughput http (all)
#   OUT      folder for each benchmark's output (a temporary one)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
port=${PORT:-8009}
parts=${PARTS:-kernels latency throughput http}
out=${OUT:-$(mktemp -d)}
llama=loadtest/shapes/llama-8b
qwen3=loadtest/shapes/qwen3-0.6b

bench() { # name of the output, then the benchmark's arguments
    echo "== $*"
    "$python" -m loadtest.bench "${@:2}" | tee "$out/$1.txt" | grep -v '^{'
}

if [[ $parts == *kernels* ]]; then
    bench kernels kernels
fi
if [[ $parts == *latency* ]]; then
    bench llama-latency latency $llama --load-format dummy
    bench llama-latency-2k latency $llama --load-format dummy --batch-sizes 64 --input-len 2016 --output-len 128
    bench qwen3-latency latency $qwen3 --load-format dummy --max-model-len 8192
fi
if [[ $parts == *throughput* ]]; then
    for workload in prefill orca sharegpt; do
        bench llama-$workload throughput $llama --load-format dummy --workload $workload
    done
    for workload in orca sharegpt; do
        bench qwen3-$workload throughput $qwen3 --load-format dummy --max-model-len 8192 --workload $workload
    done
fi
if [[ $parts == *http* ]]; then
    "$python" -m service serve $llama --load-format dummy --port "$port" &
    server=$!
    trap 'kill $server' EXIT
    until curl -sf "http://127.0.0.1:$port/ready" >/dev/null || ! kill -0 $server 2>/dev/null; do sleep 0.5; done
    seed=0 # another for each, or the prefix cache has the prompts of the one before
    for workload in decode-1 decode-8 decode-64 prefill; do
        seed=$((seed + 1))
        case $workload in decode-*) number=${workload#decode-} ;; *) number=100 ;; esac
        "$python" -m loadtest run --base-url "http://127.0.0.1:$port" --workload "$workload" --num-prompts "$number" \
            --vocab-size 128000 --seed "$seed" --arrival at-once --label "$workload" 2>/dev/null |
            grep -E "requests completed|output tokens/s|all tokens/s|TTFT, ms: median|TPOT, ms: median" |
            sed "s/^/$workload: /"
    done
fi

shopt -s nullglob
printed=("$out"/*.txt)
[ ${#printed[@]} -eq 0 ] || { echo; "$python" -m loadtest.gpu_figures "${printed[@]}"; }
