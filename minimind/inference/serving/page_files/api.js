// This server's interface. Addresses are relative: the page may stand below another one.
import { key } from "./store.js";

export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    Object.assign(this, { status, code });
  }
}

function headers() {
  return { "Content-Type": "application/json", ...(key() ? { Authorization: `Bearer ${key()}` } : {}) };
}

async function checked(response) {
  if (response.ok) return response;
  let error = { message: `${response.status} ${response.statusText}` };
  try { ({ error } = await response.json()); } catch { /* not ours: a proxy's */ }
  throw new Refused(response.status, error.message, error.code);
}

export async function model() {
  return (await (await checked(await fetch("v1/models", { headers: headers() }))).json()).data[0];
}

// The data of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Refused(0, "");
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

function body(turns, how) {
  const system = how.system.trim() ? [{ role: "system", content: how.system.trim() }] : [];
  return JSON.stringify({
    messages: [...system, ...turns.map(({ role, content }) => ({ role, content }))],
    stream: true, stream_options: { include_usage: true },
    temperature: how.temperature, top_p: how.top_p, top_k: how.top_k, max_tokens: how.max_tokens,
    ...(how.seed === "" ? {} : { seed: how.seed }),
  });
}

// Asks, and calls `onPart` with each piece of text and of reasoning; what is known at the end: {finish, usage, dropped, seconds}.
export async function ask(turns, how, signal, onPart) {
  const response = await checked(
    await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: body(turns, how), signal }));
  const known = { finish: null, usage: null, dropped: 0, seconds: 0 };
  let began = 0;
  for await (const event of events(response)) {
    if (event.error) throw new Refused(500, event.error.message);
    known.usage = event.usage || known.usage;
    known.dropped = event.dropped_messages || 0;
    const choice = event.choices[0];
    if (!choice) continue;
    const { content = "", reasoning_content: thought = "" } = choice.delta;
    if (content || thought) {
      began = began || performance.now();
      onPart(content, thought);
    }
    known.finish = choice.finish_reason || known.finish;
    known.seconds = began ? (performance.now() - began) / 1000 : 0;
  }
  return known;
}
