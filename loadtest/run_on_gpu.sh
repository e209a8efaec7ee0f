#!/usr/bin/env bash
# Benchmarks on a machine with a CUDA device: every kernel, then dummy weights of the Llama-8B shape over HTTP.
# PYTHON chooses the interpreter, PORT the server's port. Prints short tables.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
port=${PORT:-8009}
folder=$(mktemp -d)/llama-8b
mkdir -p "$folder"
cat >"$folder/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
 "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
 "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001,
 "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}}
JSON

"$python" -m service bench kernels

"$python" -m service serve "$folder" --load-format dummy --port "$port" &
server=$!
trap 'kill $server' EXIT
until curl -sf "http://127.0.0.1:$port/ready" >/dev/null || ! kill -0 $server 2>/dev/null; do sleep 0.5; done

for workload in decode-1 decode-8 decode-64 prefill; do
    case $workload in decode-*) number=${workload#decode-} ;; *) number=100 ;; esac
    "$python" -m loadtest run --base-url "http://127.0.0.1:$port" --workload "$workload" --num-prompts "$number" \
        --vocab-size 128000 --arrival at-once --label "$workload" 2>/dev/null |
        grep -E "requests completed|output tokens/s|all tokens/s|TTFT, ms: median|TPOT, ms: median" |
        sed "s/^/$workload: /"
done
