// Drives the official OpenAI client for Node through the proxy and prints one
// JSON line per check; nodeclient_test.go reads them.
import OpenAI from "openai";

const [base] = process.argv.slice(2);
const client = new OpenAI({ baseURL: base, apiKey: "unused", maxRetries: 0, defaultHeaders: { "X-Session-ID": "node" } });
const say = (name, value) => console.log(JSON.stringify({ name, value }));
const messages = [{ role: "user", content: "question" }];

const chat = await client.chat.completions.create({ model: "fake", messages });
say("chat", { text: chat.choices[0].message.content, usage: chat.usage });

let text = "", usage;
for await (const part of await client.chat.completions.create({ model: "fake", messages, stream: true, stream_options: { include_usage: true } })) {
  text += part.choices[0]?.delta?.content ?? "";
  usage = part.usage ?? usage;
}
say("stream", { text, usage });

const completion = await client.completions.create({ model: "fake", prompt: "question", max_tokens: 3 });
say("completion", completion.choices[0].text);

const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const call = await client.chat.completions.create({ model: "tools", messages, tools });
say("tools", call.choices[0].message.tool_calls?.[0]?.function);

const models = [];
for await (const m of client.models.list()) models.push(m.id);
say("models", models);

for (const model of ["status400", "status500", "status503"]) {
  try {
    await client.chat.completions.create({ model, messages });
    say(model, "no error");
  } catch (e) {
    say(model, { kind: e.constructor.name, status: e.status, message: e.message, type: e.type });
  }
}

try {
  for await (const part of await client.chat.completions.create({ model: "cut", messages, stream: true })) void part;
  say("cut", "no error");
} catch (e) {
  say("cut", { kind: e.constructor.name, message: e.message });
}

const controller = new AbortController();
let seen = 0;
try {
  for await (const part of await client.chat.completions.create({ model: "slow", messages, stream: true }, { signal: controller.signal })) {
    if (part.choices[0]?.delta?.content) seen++;
    if (seen === 2) controller.abort();
  }
} catch (e) {
  if (e.name !== "APIUserAbortError" && e.name !== "AbortError" && e.constructor.name !== "APIUserAbortError") throw e;
}
say("cancel", seen >= 2 && seen < 500 ? "cancelled" : seen);
