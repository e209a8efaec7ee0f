#!/bin/sh
# Runs lm-evaluation-harness against a running server, on tasks whose text is in this repository.
#
#   pip install "lm_eval[api]" transformers     # in a separate environment: Headrace does not depend on it
#   headrace serve &
#   loadtest/lm_eval/run.sh http://127.0.0.1:8000 headrace-quickstart service/quickstart/model
set -eu
url=$1 model=$2 tokenizer=$3
here=$(cd "$(dirname "$0")" && pwd)
tasks=$(mktemp -d)
trap 'rm -r "$tasks"' EXIT
for file in "$here"/*.yaml; do
    sed "s|DIRECTORY|$here|" "$file" > "$tasks/$(basename "$file")"
done
lm_eval --model local-completions --include_path "$tasks" \
    --tasks headrace_documents,headrace_questions,headrace_generation \
    --model_args "model=$model,base_url=$url/v1/completions,tokenizer=$tokenizer,tokenizer_backend=huggingface,num_concurrent=1,max_length=512"
