// The chat page.
import { ask, model, Refused } from "./api.js";
import { copyText, make, markdown } from "./markdown.js";
import * as store from "./store.js";
import { language, say, switchLanguage, translate } from "./texts.js";

const at = (id) => document.getElementById(id);
const FIELDS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
let served = null; // the model, once the server has named it
let current = { turns: [], used: 0 }; // a new one is listed with its first question
let running = null; // {controller, conversation} of the answer that is being made

// ---- what is shown

function button(name, onclick) {
  const node = make("button", say(name));
  node.onclick = onclick;
  return node;
}

function tools(...nodes) {
  const row = make("div", ...nodes);
  row.className = "tools";
  return row;
}

function showTurn(turn, index) {
  const node = make("div");
  node.className = `turn ${turn.role}`;
  const who = make("div", turn.role === "user" ? say("you") : at("model").textContent);
  who.className = "who";
  const body = make("div");
  body.className = "body";
  body.dir = "auto";
  node.append(who, body);
  if (turn.role === "user") body.textContent = turn.content;
  else showAnswer(turn, body);
  if (running?.turn === turn) node.classList.add("making");
  else node.append(turn.role === "user" ? userTools(turn, index, node) : answerTools(turn, index));
  if (turn.error) node.append(errorBox(turn, index));
  return node;
}

function showAnswer(turn, body) {
  body.replaceChildren(...markdown(turn.content));
  if (!turn.thought) return;
  const old = body.parentNode?.querySelector(".thought");
  const text = make("div", turn.thought);
  if (old) old.lastChild.replaceWith(text);
  else {
    const thought = make("details", make("summary", say("thought")), text);
    thought.className = "thought";
    body.before(thought);
  }
}

function userTools(turn, index, node) {
  const copy = button("copy", () => copyText(turn.content, copy));
  return tools(button("edit", () => edit(turn, index, node)), copy);
}

function answerTools(turn, index) {
  const copy = button("copy", () => copyText(turn.content, copy));
  const notes = (turn.notes || []).map((name) => say(name));
  if (turn.tokens) notes.push(say("made", turn.tokens));
  if (turn.rate) notes.push(say("rate", turn.rate));
  const note = make("span", notes.join(" · "));
  note.className = "note";
  return tools(copy, button("again", () => answerFrom(index)), note);
}

function errorBox(turn, index) {
  const text = (language === "en" && turn.detail) || say(turn.error); // the server speaks English
  const again = turn.role === "user" ? index + 1 : index;
  const box = make("div", make("span", text), button("retry", () => answerFrom(again)));
  box.className = "error";
  box.setAttribute("role", "alert");
  return box;
}

function showEmpty() {
  const node = make("div", make("h1", at("model").textContent));
  node.id = "empty";
  const about = served?.about;
  const text = make("p", about ? say("knows", about.knows) : say("hello"));
  text.className = "quiet";
  const items = (about?.examples || say("examples")).map((example) => {
    const item = make("button", example);
    item.onclick = () => { at("question").value = example; send(); };
    return make("li", item);
  });
  node.append(text, make("ul", ...items));
  return node;
}

function show() {
  const turns = current.turns.map(showTurn);
  at("turns").replaceChildren(...(turns.length ? turns : [showEmpty()]));
  showContext();
  showList();
  showRunning();
}

function showContext() {
  at("context").textContent = served && current.used ? say("context", current.used, served.max_model_len) : "";
}

function showRunning() {
  const mine = running?.conversation === current;
  at("send").hidden = mine;
  at("stop").hidden = !mine;
  at("send").disabled = Boolean(running) && !mine;
}

function showList() {
  const items = store.conversations.filter((one) => one.turns.length).map((one) => {
    const name = make("button", one.turns[0].content.trim().slice(0, 60) || say("untitled"));
    name.className = "name";
    name.onclick = () => open(one);
    const remove = make("button", "×");
    remove.className = "delete";
    remove.title = say("remove");
    remove.setAttribute("aria-label", remove.title);
    remove.onclick = () => { if (confirm(say("sure"))) forget(one); };
    const item = make("li", name, remove);
    if (one === current) item.className = "open";
    return item;
  });
  at("list").replaceChildren(...items);
}

const nearEnd = () => at("turns").scrollHeight - at("turns").scrollTop - at("turns").clientHeight < 60;

function toEnd() {
  at("turns").scrollTop = at("turns").scrollHeight;
  at("latest").hidden = true;
}

// ---- conversations

function open(conversation) {
  current = conversation;
  sessionStorage.setItem("open", conversation.id || "");
  document.body.classList.remove("menu");
  show();
  toEnd();
}

function fresh() {
  open({ turns: [], used: 0 });
  at("question").focus();
}

function forget(conversation) {
  if (running?.conversation === conversation) running.controller.abort();
  store.remove(conversation);
  if (conversation === current) fresh();
  else show();
}

function send() {
  const question = at("question").value.trim();
  if (!question || running) return;
  at("question").value = "";
  grow();
  if (!store.conversations.includes(current)) current = Object.assign(store.create(), { turns: current.turns });
  sessionStorage.setItem("open", current.id);
  current.turns.push({ role: "user", content: question });
  answerFrom(current.turns.length);
}

function edit(turn, index, node) {
  if (running) return;
  const field = make("textarea");
  field.value = turn.content;
  field.rows = Math.min(8, turn.content.split("\n").length + 1);
  const row = make("div", button("cancel", show), button("resend", () => {
    if (!field.value.trim() || running) return;
    current.turns[index] = { role: "user", content: field.value.trim() };
    answerFrom(index + 1);
  }));
  row.className = "row";
  row.lastChild.classList.add("main");
  const form = make("div", field, row);
  form.className = "edit";
  node.replaceChildren(form);
  field.focus();
}

// ---- an answer

// Make turn `index` anew: what came after it goes.
async function answerFrom(index) {
  if (running) return;
  const conversation = current;
  conversation.turns.length = index;
  delete conversation.turns[index - 1].error; // it is asked again
  const turn = { role: "assistant", content: "" };
  running = { controller: new AbortController(), conversation, turn };
  const asked = [...conversation.turns];
  conversation.turns.push(turn);
  store.keep();
  show();
  toEnd();
  await fill(turn, asked, running.controller.signal);
  if (!turn.content && !turn.thought) conversation.turns.splice(conversation.turns.indexOf(turn), 1);
  const stays = !nearEnd();
  running = null;
  if (store.conversations.includes(conversation)) store.keep();
  const top = at("turns").scrollTop;
  show();
  if (conversation === current && !stays) toEnd();
  else at("turns").scrollTop = top;
}

async function fill(turn, asked, signal) {
  const { conversation } = running;
  let waiting = false;
  const draw = () => {
    waiting = false;
    const body = at("turns").querySelector(".making .body");
    if (!body || running?.turn !== turn) return;
    const follow = nearEnd();
    showAnswer(turn, body);
    if (follow) toEnd();
    else at("latest").hidden = false;
  };
  try {
    const known = await ask(asked, store.settings(), signal, (text, thought) => {
      turn.content += text;
      turn.thought = (turn.thought || "") + thought;
      if (!waiting) requestAnimationFrame(draw);
      waiting = true;
    });
    finish(turn, conversation, known);
  } catch (error) {
    if (error.name === "AbortError") turn.notes = ["stopped"];
    else fail(asked, turn, error);
  }
}

function finish(turn, conversation, known) {
  turn.notes = [...(known.finish === "length" ? ["cut"] : []), ...(known.dropped ? ["dropped"] : [])];
  turn.tokens = known.usage?.completion_tokens || 0;
  if (turn.tokens > 1 && known.seconds > 0) turn.rate = Number(((turn.tokens - 1) / known.seconds).toPrecision(3));
  conversation.used = known.usage?.total_tokens || conversation.used;
  if (!turn.content) turn.content = " "; // an empty answer is one, too
}

// The question stays, with the reason and a way to try again.
function fail(asked, turn, error) {
  const known = { 401: "locked", 500: "failed", 503: "busy", 0: "broken" };
  const reason = error.code === "context_length_exceeded" ? "long" : known[error.status] || "refused";
  Object.assign(turn.content ? turn : asked[asked.length - 1],
    error instanceof Refused ? { error: reason, detail: error.message } : { error: "lost", detail: "" });
  if (error.status === 401) openSettings();
}

// ---- settings

function openSettings() {
  fillSettings(store.settings());
  if (!at("options").open) at("options").showModal();
}

function fillSettings(values) {
  at("system").value = values.system;
  for (const name of FIELDS) at(name).value = values[name];
  at("key").value = store.key();
}

function readSettings() {
  const values = { system: at("system").value };
  for (const name of FIELDS) {
    const { value, validity } = at(name);
    if (name === "seed") values.seed = /^-?\d{1,15}$/.test(value) ? Number(value) : "";
    else values[name] = value !== "" && validity.valid ? Number(value) : store.settings()[name];
  }
  store.keepSettings(values);
  const changed = at("key").value.trim() !== store.key();
  store.keepKey(at("key").value.trim());
  if (changed || !served) meet();
}

function words() {
  translate();
  at("language").textContent = say("other");
  at("question").placeholder = say("ask");
  at("question").setAttribute("aria-label", say("ask"));
}

function grow() {
  const field = at("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

async function meet() {
  try {
    served = await model();
    at("model").textContent = document.title = served.id;
    if (!running) show();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) openSettings();
  }
}

at("send").onclick = send;
at("stop").onclick = () => running?.controller.abort();
at("new").onclick = fresh;
at("latest").onclick = toEnd;
at("menu").onclick = () => document.body.classList.toggle("menu");
at("shade").onclick = () => document.body.classList.remove("menu");
at("settings").onclick = openSettings;
at("usual").onclick = () => fillSettings({ ...store.usualSettings() });
at("options").onclose = readSettings;
at("language").onclick = () => { switchLanguage(); words(); show(); };
at("question").oninput = grow;
at("question").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
};
at("turns").onscroll = () => { if (nearEnd()) at("latest").hidden = true; };

words();
fillSettings(store.settings());
const last = store.conversations.find((one) => one.id === sessionStorage.getItem("open"));
if (last) current = last;
show();
toEnd();
meet();
