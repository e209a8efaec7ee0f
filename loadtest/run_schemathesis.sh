#!/bin/sh
# schemathesis, in all modes, against a running server and its own description: no 5xx, no answer off the description.
#
#   pip install schemathesis          # in an environment of its own: it is no dependency of Headrace
#   headrace serve --max-model-len 96 --api-key KEY &      # short answers, many requests
#   loadtest/run_schemathesis.sh http://127.0.0.1:8000 KEY 240
set -eu
url=$1 key=$2 seconds=${3:-240}
exec schemathesis run "$url/openapi.json" --header "Authorization: Bearer $key" --mode all --phases coverage,fuzzing \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
response_schema_conformance,unsupported_method,allow_header_conformance,negative_data_rejection,ignored_auth \
    --max-examples 100 --continue-on-failure --request-timeout 30 --max-time "$seconds"
