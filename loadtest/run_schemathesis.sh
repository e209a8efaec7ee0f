#!/bin/sh
# Runs schemathesis against a running server and its own OpenAPI description: there must be no 5xx and no answer that
# contradicts the description. First in all modes, where most calls are refused; then only with calls that a server
# can serve (sensible_calls.py), of which at least half must succeed.
#
#   pip install schemathesis          # in a separate environment: Headrace does not depend on it
#   headrace serve --max-model-len 512 --api-key KEY &      # short answers, many requests
#   loadtest/run_schemathesis.sh http://127.0.0.1:8000 KEY 240
set -eu
url=$1 key=$2 seconds=${3:-240}
python=${PYTHON:-python3}
schemathesis run "$url/openapi.json" --header "Authorization: Bearer $key" --mode all --phases coverage,fuzzing \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
response_schema_conformance,unsupported_method,allow_header_conformance,negative_data_rejection,ignored_auth \
    --max-examples 100 --continue-on-failure --request-timeout 30 --max-time "$seconds"

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
"$python" -m loadtest.sensible_calls narrow "$url" "$key" > "$folder/narrowed.json"
schemathesis run "$folder/narrowed.json" --url "$url" --header "Authorization: Bearer $key" --mode positive \
    --phases fuzzing --include-method POST \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --max-examples 100 --continue-on-failure --request-timeout 30 --max-time "$seconds" \
    --report-har-path "$folder/answers.har"
"$python" -m loadtest.sensible_calls count "$folder/answers.har"
