"""The anthropic package: the router answers /v1/messages as well, so tools made for Claude work.

pip install anthropic
LLAMA_ROUTER_API_KEY=... python anthropic_python.py qwen3-4b
"""

import os
import sys

import anthropic

client = anthropic.Anthropic(
    base_url=os.environ.get("LLAMA_ROUTER_URL", "http://127.0.0.1:11434"),  # without /v1
    api_key=os.environ.get("LLAMA_ROUTER_API_KEY", "none"),
    timeout=3600,
    max_retries=0,
)
with client.messages.stream(
    model=sys.argv[1],
    messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    max_tokens=40,
    extra_body={"temperature": 0},  # the package itself knows it no more
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
