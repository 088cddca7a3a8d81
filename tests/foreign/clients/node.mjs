// openai-node: a chat, a stream, a tool call in a stream, a JSON schema, the models' list, the error of an unknown model.
import OpenAI from "openai";

const [, , baseURL, model] = process.argv;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "What is the capital of France? Answer in one short sentence." }];
const parameters = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};
const common = { model, messages, temperature: 0, max_tokens: 48, seed: 1 };
const must = (ok, what) => {
  if (!ok) throw new Error(JSON.stringify(what));
};

const cases = {
  async chat() {
    const answer = await client.chat.completions.create(common);
    must(answer.choices[0].message.content.includes("Paris"), answer);
  },
  async stream() {
    let text = "";
    for await (const event of await client.chat.completions.create({ ...common, stream: true })) {
      text += event.choices[0]?.delta?.content ?? "";
    }
    must(text.includes("Paris"), text);
  },
  async "tool in a stream"() {
    const runner = client.chat.completions.stream({
      ...common,
      messages: [{ role: "user", content: "What is 2 plus 3?" }],
      tools: [{ type: "function", function: { name: "add", description: "Adds two whole numbers.", parameters } }],
      tool_choice: { type: "function", function: { name: "add" } },
    });
    const answer = await runner.finalChatCompletion();
    const call = answer.choices[0].message.tool_calls[0].function;
    must(call.name === "add" && "a" in JSON.parse(call.arguments), answer);
  },
  async json_schema() {
    const answer = await client.chat.completions.create({
      ...common,
      response_format: { type: "json_schema", json_schema: { name: "sum", strict: true, schema: parameters } },
    });
    must("b" in JSON.parse(answer.choices[0].message.content), answer);
  },
  async responses() {
    const answer = await client.responses.create({ model, input: messages[0].content, max_output_tokens: 48, temperature: 0 });
    must(answer.output_text.includes("Paris"), answer);
  },
  async models() {
    const listed = [];
    for await (const one of client.models.list()) listed.push(one.id);
    must(listed.includes(model), listed);
  },
  async "unknown model"() {
    const error = await client.chat.completions.create({ ...common, model: "no-such-model" }).catch((found) => found);
    must(error instanceof OpenAI.NotFoundError && error.code === "model_not_found", String(error));
  },
};

const outcome = {};
for (const [name, run] of Object.entries(cases)) {
  outcome[name] = await run().then(() => "", (error) => String(error?.stack ?? error).slice(0, 1500));
}
console.log(JSON.stringify(outcome));
