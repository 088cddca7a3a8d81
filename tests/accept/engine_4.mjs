// Streams a chat through OpenAI's client for Node and prints what it put together, as JSON: node engine_4.mjs URL BODY
import OpenAI from "openai";

const [, , url, body] = process.argv;
const client = new OpenAI({ baseURL: url, apiKey: "unused", maxRetries: 0 });
const pieces = [];
const stream = client.chat.completions.stream(JSON.parse(body));
stream.on("chunk", (chunk) => {
  for (const choice of chunk.choices) pieces.push(...(choice.delta.tool_calls ?? []));
});
const done = await stream.finalChatCompletion();
const choice = done.choices[0];
console.log(JSON.stringify({ pieces, calls: choice.message.tool_calls ?? [], finish: choice.finish_reason }));
