#!/bin/sh
# Simon Willison's `llm`: its list of further OpenAI endpoints, and a question.
#
#   pip install llm
#   LLAMA_ROUTER_API_KEY=... sh llm.sh qwen3-4b
set -eu
model=$1
url=${LLAMA_ROUTER_URL:-http://127.0.0.1:11434}
: "${LLM_USER_PATH:=$HOME/.config/io.datasette.llm}"
export LLM_USER_PATH
mkdir -p "$LLM_USER_PATH"
models=$LLM_USER_PATH/extra-openai-models.yaml
if ! grep -qs "model_id: llama-router/$model\$" "$models"; then
    cat >>"$models" <<YAML
- model_id: llama-router/$model
  model_name: $model
  api_base: $url/v1
YAML
fi
# Without an `api_key_name` in that file, llm takes the key from here.
OPENAI_API_KEY=${LLAMA_ROUTER_API_KEY:-none}
export OPENAI_API_KEY
exec llm -m "llama-router/$model" -o temperature 0 -o max_tokens 40 \
    'What is the capital of France? Answer in one sentence.'
