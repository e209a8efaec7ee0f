#!/bin/sh
# guidellm, the load tester that vLLM's users know, against the model that comes with Headrace: a short run.
# usage: loadtest/run_guidellm.sh [PORT]   (needs `guidellm` in PATH: pip install guidellm, in an environment of its own)
set -eu
cd "$(dirname "$0")/.."
port="${1:-8123}"
url="http://127.0.0.1:$port"
"${HEADRACE:-.venv/bin/headrace}" serve --port "$port" &
server=$!
trap 'kill "$server"' EXIT
until curl -fs -o /dev/null "$url/ready"; do sleep 1; done
guidellm run \
    --backend "kind=openai_http,target=$url,model=headrace-quickstart" \
    --profile kind=concurrent,streams=4 \
    --constraint kind=max_requests,count=20 \
    --tokenizer kind=huggingface_auto,model=service/quickstart/model \
    --data kind=synthetic_text,prompt_tokens=64,output_tokens=32 \
    --output "kind=json,path=${TMPDIR:-/tmp}/guidellm.json" \
    --disable-progress
