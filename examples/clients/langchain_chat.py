"""LangChain by its OpenAI package.

pip install langchain-openai
LLAMA_ROUTER_API_KEY=... python langchain_chat.py qwen3-4b
"""

import os
import sys

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    base_url=os.environ.get("LLAMA_ROUTER_URL", "http://127.0.0.1:11434") + "/v1",
    api_key=os.environ.get("LLAMA_ROUTER_API_KEY", "none"),
    model=sys.argv[1],
    temperature=0,
    max_tokens=40,
    timeout=3600,
    max_retries=0,
)
for piece in chat.stream("What is the capital of France? Answer in one sentence."):
    print(piece.content, end="", flush=True)
print()
