// The openai package for Node.
//
//   npm install openai
//   LLAMA_ROUTER_API_KEY=... node openai_node.mjs qwen3-4b
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: (process.env.LLAMA_ROUTER_URL ?? "http://127.0.0.1:11434") + "/v1",
  apiKey: process.env.LLAMA_ROUTER_API_KEY ?? "none",
  timeout: 3600 * 1000, // a request may wait in the queue for its model
  maxRetries: 0, // the router retries what can be retried
});
const stream = await client.chat.completions.create({
  model: process.argv[2],
  messages: [{ role: "user", content: "What is the capital of France? Answer in one sentence." }],
  max_tokens: 40,
  temperature: 0,
  stream: true,
});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
process.stdout.write("\n");
