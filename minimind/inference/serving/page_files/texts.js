// The page's words in English and Chinese.
const TEXTS = {
  en: {
    fresh: "New chat", conversations: "Conversations", untitled: "New chat", settings: "Settings",
    system: "System message", temperature: "Temperature", top_p: "Top-p", top_k: "Top-k (0: off)",
    max_tokens: "Tokens at most", seed: "Seed", random: "random", key: "API key",
    kept: "Settings and conversations are kept in this browser; the key until its window closes.",
    usual: "Defaults", done: "Done", send: "Send", stop: "Stop", ask: "Ask something", you: "You",
    stopped: "stopped", cut: "cut at the limit of tokens", dropped: "the oldest turns no longer fit and were left out",
    lost: "The server can't be reached.", broken: "The answer broke off.", locked: "This server wants its API key.",
    long: "This is too long for the model.", failed: "The server failed.", busy: "The server is busy or stopping.",
    refused: "The server refused this.",
    retry: "Try again", edit: "Edit", copy: "Copy", copied: "Copied", again: "Regenerate",
    resend: "Send again", cancel: "Cancel", remove: "Delete", sure: "Delete this conversation?",
    latest: "↓ Latest", rate: (n) => `${n} tokens/s`, made: (n) => `${n} tokens`,
    context: (used, of) => `${used} of ${of} tokens`, hello: "What would you like to ask?",
    knows: (what) => `This model knows ${what}`, other: "中文", code: "code", thought: "Reasoning",
    examples: ["Who are you?", "Why is the sky blue?", "Tell me a short story."],
  },
  zh: {
    fresh: "新对话", conversations: "对话列表", untitled: "新对话", settings: "设置",
    system: "系统提示词", temperature: "温度", top_p: "Top-p", top_k: "Top-k（0 为不限）",
    max_tokens: "最多生成词元数", seed: "随机种子", random: "随机", key: "API 密钥",
    kept: "设置和对话保存在本浏览器中；密钥只保留到窗口关闭。",
    usual: "恢复默认", done: "完成", send: "发送", stop: "停止", ask: "输入问题", you: "你",
    stopped: "已停止", cut: "已达到词元上限", dropped: "最早的几轮对话放不下，已略去",
    lost: "无法连接服务器。", broken: "回答中断了。", locked: "此服务器需要 API 密钥。",
    long: "内容太长，超出了模型的上限。", failed: "服务器出错了。", busy: "服务器正忙，或正在停止。",
    refused: "服务器拒绝了这个请求。",
    retry: "重试", edit: "编辑", copy: "复制", copied: "已复制", again: "重新生成",
    resend: "重新发送", cancel: "取消", remove: "删除", sure: "删除这个对话？",
    latest: "↓ 最新", rate: (n) => `${n} 词元/秒`, made: (n) => `${n} 个词元`,
    context: (used, of) => `${used} / ${of} 词元`, hello: "想问点什么？",
    knows: (what) => `这个模型学过：${what}`, other: "English", code: "代码", thought: "思考过程",
    examples: ["你是谁？", "天空为什么是蓝色的？", "给我讲一个小故事。"],
  },
};

export let language = (localStorage.getItem("language") || navigator.language || "en").startsWith("zh") ? "zh" : "en";

export function say(name, ...values) {
  const text = TEXTS[language][name];
  return typeof text === "function" ? text(...values) : text;
}

export function switchLanguage() {
  language = language === "zh" ? "en" : "zh";
  localStorage.setItem("language", language);
}

// Everything in the page that is named after a text.
export function translate() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = say(node.dataset.text);
  for (const node of document.querySelectorAll("[data-title]")) {
    node.title = say(node.dataset.title);
    node.setAttribute("aria-label", node.title);
  }
  for (const node of document.querySelectorAll("[data-placeholder]")) node.placeholder = say(node.dataset.placeholder);
}
