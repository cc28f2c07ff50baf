// Markdown as DOM nodes. Every text is set as text and no attribute but a checked link is: nothing that the model says
// becomes HTML, and nothing is loaded (an image is shown as its words).
import { say } from "./texts.js";

export function make(tag, ...children) {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
}

const INLINE = [
  [/`([^`\n]+)`/, (m) => make("code", m[1])],
  [/\*\*(?=\S)(.+?)(?<=\S)\*\*/s, (m) => make("strong", ...inline(m[1]))],
  [/(?<!\*)\*(?=[^\s*])([^*\n]+?)(?<=\S)\*(?!\*)/, (m) => make("em", ...inline(m[1]))],
  [/~~(?=\S)(.+?)(?<=\S)~~/s, (m) => make("s", ...inline(m[1]))],
  [/!\[([^\]\n]*)\]\([^)\s]*\)/, (m) => m[1]],
  [/\[([^\]\n]+)\]\((https?:\/\/[^)\s]+)\)/, (m) => link(m[1], m[2])],
];

function link(text, address) {
  const node = make("a", text);
  node.href = address; // http or https, by the pattern
  node.title = address;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return node;
}

function inline(text) {
  let first = null;
  for (const [pattern, build] of INLINE) {
    const found = pattern.exec(text);
    if (found && (!first || found.index < first.found.index)) first = { found, build };
  }
  if (!first) return [text];
  const { found, build } = first;
  return [text.slice(0, found.index), build(found), ...inline(text.slice(found.index + found[0].length))];
}

function codeBlock(language, text) {
  const copy = make("button", say("copy"));
  copy.onclick = () => copyText(text, copy);
  const block = make("div", make("div", make("span", language || say("code")), copy), make("pre", make("code", text)));
  block.className = "code";
  return block;
}

export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission, or not a secure place
    const field = make("textarea", text);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  button.textContent = say("copied");
  setTimeout(() => { button.textContent = say("copy"); }, 1200);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

// The blocks of a text, as nodes.
export function markdown(text) {
  const lines = text.split("\n");
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at);
    if (node) nodes.push(node);
    at = next;
  }
  return nodes;
}

function block(lines, at) {
  const line = lines[at];
  let found;
  if (!line.trim()) return [null, at + 1];
  if ((found = FENCE.exec(line))) return fence(lines, at, found);
  if ((found = HEADING.exec(line))) return [make(`h${Math.min(2 + found[1].length, 5)}`, ...inline(found[2])), at + 1];
  if (RULE.test(line)) return [make("hr"), at + 1];
  if (/^ {0,3}>/.test(line)) return quote(lines, at);
  if (line.includes("|") && DIVIDER.test(lines[at + 1] || "") && lines[at + 1].includes("-")) return table(lines, at);
  if (ITEM.test(line)) return list(lines, at);
  return paragraph(lines, at);
}

function fence(lines, at, found) {
  const end = new RegExp(`^ {0,3}${found[1][0]}{${found[1].length},}\\s*$`);
  let next = at + 1;
  while (next < lines.length && !end.test(lines[next])) next += 1;
  return [codeBlock(found[2], lines.slice(at + 1, next).join("\n")), next + 1];
}

function quote(lines, at) {
  let next = at;
  while (next < lines.length && /^ {0,3}>/.test(lines[next])) next += 1;
  const inside = lines.slice(at, next).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [make("blockquote", ...inside.flatMap((line, i) => (i ? [make("br"), ...inline(line)] : inline(line)))), next];
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function table(lines, at) {
  const head = make("tr", ...cells(lines[at]).map((cell) => make("th", ...inline(cell))));
  const body = make("tbody");
  let next = at + 2;
  for (; next < lines.length && lines[next].includes("|"); next += 1) {
    body.append(make("tr", ...cells(lines[next]).map((cell) => make("td", ...inline(cell)))));
  }
  const around = make("div", make("table", make("thead", head), body));
  around.className = "scroll";
  return [around, next];
}

function list(lines, at) {
  const indent = ITEM.exec(lines[at])[1].length;
  const ordered = /\d/.test(ITEM.exec(lines[at])[2]);
  const node = make(ordered ? "ol" : "ul");
  if (ordered) node.start = parseInt(ITEM.exec(lines[at])[2], 10);
  let next = at;
  while (next < lines.length) {
    const found = ITEM.exec(lines[next]);
    if (!found || found[1].length < indent) {
      const belongs = !found && node.lastChild && /^\s+\S/.test(lines[next]);
      if (!belongs) break;
      node.lastChild.append(make("br"), ...inline(lines[next].trim()));
      next += 1;
    } else if (found[1].length > indent + 1) {
      const [inner, after] = list(lines, next);
      (node.lastChild || node).append(inner);
      next = after;
    } else if (/\d/.test(found[2]) !== ordered) {
      break;
    } else {
      node.append(make("li", ...inline(found[3])));
      next += 1;
      if (next + 1 < lines.length && !lines[next].trim() && ITEM.test(lines[next + 1])) next += 1;
    }
  }
  return [node, next];
}

function paragraph(lines, at) {
  const node = make("p");
  let next = at;
  while (next < lines.length && lines[next].trim()) {
    if (next > at && [FENCE, HEADING, ITEM, RULE].some((pattern) => pattern.test(lines[next]))) break;
    node.append(...(next > at ? [make("br")] : []), ...inline(lines[next]));
    next += 1;
  }
  return [node, next];
}
