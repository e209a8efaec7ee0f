// Markdown of a model, made into elements. What it writes is never markup: HTML in it is shown as text, pictures are links
// (nothing is loaded from anywhere), and what the parser makes goes through the sanitizer.

import { Marked } from "./vendor/marked-18.2.1/marked.esm.js";
import DOMPurify from "./vendor/dompurify-3.4.18/purify.es.mjs";
import { copyButton } from "./copying.js";
import { make } from "./dom.js";

const escape = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escape(text)}</p>` : escape(text)),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {  // h1 is the page's and h2 the turns'
      const level = Math.min(6, depth + 2);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

const ALLOWED = {
  ALLOWED_TAGS: "p br hr h3 h4 h5 h6 ul ol li blockquote pre code em strong del a table thead tbody tr th td".split(" "),
  ALLOWED_ATTR: ["href", "align", "start", "class"],
  ADD_URI_SAFE_ATTR: ["align", "start"],  // any other attribute's value has to be an address
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};
const COLOURED = { ...ALLOWED, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] };
const MOST_COLOURED = 50_000;  // characters of one block of code

let highlighter = null;

/**
 * Shows Markdown that grows at its end. Blocks that can no longer change are left as they stand: a call costs what the
 * last two blocks cost, not the whole answer.
 */
export class MarkdownView {
  #element;
  #rest = "";       // text of the blocks that may still change
  #settled = [];    // text of those that may not
  #changing = [];   // elements of the rest

  constructor(element) {
    this.#element = element;
  }

  append(text) {
    this.#rest += text;
    const blocks = marked.lexer(this.#rest);
    const first = firstOfTheLastTwo(blocks);
    this.#replace(blocks.slice(0, first));
    const settled = blocks.slice(0, first).map((block) => block.raw);
    this.#settled.push(...settled);
    this.#rest = this.#rest.slice(settled.join("").length);
    this.#changing = [];
    this.#replace(blocks.slice(first));
  }

  /** All has come. What came later may have changed how the beginning reads: it defined a link, or closed a comment. */
  finish() {
    const text = this.#settled.join("") + this.#rest;
    const blocks = marked.lexer(text);
    const isAsSettled = this.#settled.every((raw, index) => raw === blocks[index].raw);
    if (isAsSettled && !Object.keys(blocks.links).length) return;
    this.#changing = [...this.#element.childNodes];
    this.#replace(blocks);
  }

  #replace(blocks) {
    const fragment = elementsOf(blocks);
    for (const node of this.#changing) node.remove();
    this.#changing = [...fragment.childNodes];
    this.#element.append(fragment);
  }
}

/** A block that another follows is complete, unless it is a list that goes on: the second after it settles that. */
function firstOfTheLastTwo(blocks) {
  let first = blocks.length;
  for (let left = 2; left > 0 && first > 0; first--) if (blocks[first - 1].type !== "space") left--;
  return first;
}

function elementsOf(blocks) {
  const fragment = DOMPurify.sanitize(marked.parser(blocks), ALLOWED);
  for (const link of fragment.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of fragment.querySelectorAll("pre > code")) code.parentNode.replaceWith(codeBlock(code));
  return fragment;
}

function codeBlock(code) {
  const text = code.textContent, language = /^language-(\S+)/.exec(code.className)?.[1] ?? "";
  const shown = make("code", { text });
  colour(shown, text, language);
  return make(
    "div", { class: "code" },
    make("div", { class: "head" }, make("span", { text: language }), copyButton(() => text, "Copy the code")),
    make("pre", { tabindex: 0, role: "region", "aria-label": "Code" }, shown),
  );
}

/** At once if the highlighter is here, else when it is: it is only loaded for those who see code. */
async function colour(element, text, language) {
  if (!language || text.length > MOST_COLOURED) return;
  if (!highlighter) {
    const module = await import("./vendor/highlightjs-cdn-assets-11.12.0/highlight.min.js");
    highlighter = module.default;
  }
  if (!highlighter.getLanguage(language)) return;
  const html = highlighter.highlight(text, { language, ignoreIllegals: true }).value;
  element.replaceChildren(DOMPurify.sanitize(html, COLOURED));
}
