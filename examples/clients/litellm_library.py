"""LiteLLM as a library: the provider is `openai/`, the model the router's name for it.

pip install litellm
LLAMA_ROUTER_API_KEY=... python litellm_library.py qwen3-4b
"""

import os
import sys

import litellm

stream = litellm.completion(
    model=f"openai/{sys.argv[1]}",
    api_base=os.environ.get("LLAMA_ROUTER_URL", "http://127.0.0.1:11434") + "/v1",
    api_key=os.environ.get("LLAMA_ROUTER_API_KEY", "none"),
    messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    max_tokens=40,
    temperature=0,
    stream=True,
    timeout=3600,
    num_retries=0,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
