// Conversations and settings in this browser's storage; in memory alone where it has none or is full.
const CONVERSATIONS = "conversations";
const USUAL = { system: "", temperature: 0.7, top_p: 0.9, top_k: 0, max_tokens: 400, seed: "" };

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

// The newest first: [{id, turns: [{role, content, ...}], used}]. A turn's other fields are shown, not sent.
const stored = read(CONVERSATIONS, []);
export const conversations = Array.isArray(stored) ? stored.filter((one) => Array.isArray(one?.turns)) : [];

export function keep() {
  for (let count = conversations.length; count >= 0; count -= 1) { // full: the oldest are no longer kept
    try {
      localStorage.setItem(CONVERSATIONS, JSON.stringify(conversations.slice(0, count).filter((c) => c.turns.length)));
      return;
    } catch { /* fewer */ }
  }
}

export function create() {
  const conversation = { id: `${Date.now()}-${Math.random()}`, turns: [], used: 0 };
  conversations.unshift(conversation);
  return conversation;
}

export function remove(conversation) {
  conversations.splice(conversations.indexOf(conversation), 1);
  keep();
}

export function settings() {
  return { ...USUAL, ...read("settings", {}) };
}

export function keepSettings(values) {
  try { localStorage.setItem("settings", JSON.stringify(values)); } catch { /* for this time only */ }
}

export function usualSettings() {
  keepSettings(USUAL);
  return { ...USUAL };
}

export function key() { return sessionStorage.getItem("key") || ""; }
export function keepKey(value) { sessionStorage.setItem("key", value); }
