"""The openai package: list the models, ask one of them, and read its answer as it is made.

pip install openai
LLAMA_ROUTER_API_KEY=... python openai_python.py qwen3-4b
"""

import os
import sys

import openai

client = openai.OpenAI(
    base_url=os.environ.get("LLAMA_ROUTER_URL", "http://127.0.0.1:11434") + "/v1",
    api_key=os.environ.get("LLAMA_ROUTER_API_KEY", "none"),  # the package wants one even where the router does not
    timeout=3600,  # a request may wait in the queue for its model; the package's own limit is 10 minutes
    max_retries=0,  # the router retries what can be retried
)
print("models:", ", ".join(model.id for model in client.models.list()))
model = sys.argv[1] if len(sys.argv) > 1 else next(iter(client.models.list())).id
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
    max_tokens=40,
    temperature=0,
    stream=True,
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
