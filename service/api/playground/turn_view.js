// One turn of a chat as people see it. What a message holds is told in conversation.js.

import { copyButton } from "./copying.js";
import { button, make } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { tokenView } from "./token_view.js";

const NAMES = { user: () => "You", assistant: (message) => message.model, tool: (message) => `Result of ${message.name}` };
const JSON_FENCE = "~~~~~~json\n";  // no line of JSON can end it

class TurnView {
  constructor(message) {
    this.message = message;
    this.element = make("article", { class: `turn ${message.role}` }, make("h2", { text: NAMES[message.role](message) }));
    this.foot = make("div", { class: "foot" });
  }

  /** What the server, or the page, says went wrong. */
  showError(text) {
    if (text) this.foot.before(make("div", { class: "error", role: "alert", text }));
  }
}

/** A question, or a tool's result. onEdit: called with its new text. */
export class WrittenTurn extends TurnView {
  constructor(message, onEdit) {
    super(message);
    this.text = make("div", { class: "text", text: message.content });
    if (message.failed) this.foot.append(button("Try again", () => onEdit(message.content), { class: "quiet" }));
    this.foot.append(button("Edit", () => this.#edit(onEdit), { class: "quiet" }), copyButton(() => message.content, "Copy the text"));
    this.element.append(this.text, this.foot);
    this.showError(message.failed);
  }

  #edit(onEdit) {
    const field = make("textarea", { rows: Math.min(12, this.message.content.split("\n").length + 1), "aria-label": "New text" });
    field.value = this.message.content;
    const close = () => {
      form.replaceWith(this.text);
      this.foot.hidden = false;
      this.foot.querySelector("button").focus();
    };
    const form = make(
      "form", {
        onsubmit: (event) => { event.preventDefault(); onEdit(field.value.trim()); },
        onkeydown: (event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } },
      },
      field,
      make("div", { class: "row" }, make("button", { class: "main", text: "Ask again" }), button("Cancel", close)),
    );
    this.text.replaceWith(form);
    this.foot.hidden = true;
    field.focus();
  }
}

/** An answer: it grows with `show`, and is whole after `finish`. */
export class AnswerTurn extends TurnView {
  #onRegenerate;
  #onResults;
  #markdown;
  #numShown = 0;

  /** onResults: called with the texts that the tools gave, one for each call. */
  constructor(message, onRegenerate, onResults) {
    super(message);
    this.#onRegenerate = onRegenerate;
    this.#onResults = onResults;
    this.reasoning = make("div");
    this.thought = make("details", { hidden: "" }, make("summary", { text: "Reasoning" }), this.reasoning);
    this.text = make("div", { class: "text markdown waiting" });
    this.calls = make("div");
    this.#markdown = new MarkdownView(this.text);
    this.element.append(this.thought, this.text, this.calls, this.foot);
  }

  /** answer: an Answer, or a message that was kept. It may have more at its end than the last time, nothing else. */
  show({ content, reasoning, toolCalls }) {
    if (reasoning.length !== this.reasoning.textContent.length) {
      this.thought.hidden = false;
      this.reasoning.textContent = reasoning;
    }
    if (content.length > this.#numShown) {
      this.#markdown.append((this.message.isJson && !this.#numShown ? JSON_FENCE : "") + content.slice(this.#numShown));
      this.#numShown = content.length;
    }
    this.calls.replaceChildren(...toolCalls.map(({ function: { name, arguments: text } }) => make(
      "div", { class: "code" },
      make("div", { class: "head", text: `calls ${name}` }),
      make("pre", { tabindex: 0, role: "region", "aria-label": "Arguments" }, make("code", { text: indented(text) })),
    )));
  }

  /** tokens: with their log probabilities, if there are any. */
  finish(tokens = []) {
    const { facts, error, toolCalls } = this.message;
    this.show(this.message);
    this.#markdown.finish();
    this.text.classList.remove("waiting");
    this.foot.append(
      ...(facts.length ? [facts.map(([name, value]) => `${name} ${value}`).join("  ·  ")] : []),
      copyButton(() => this.message.content, "Copy the answer as it was written"),
      ...(tokens.length ? [this.#tokensButton(tokens)] : []),
      button("Regenerate", this.#onRegenerate, { class: "quiet" }),
    );
    this.showError(error);
    if (toolCalls.length) this.calls.append(this.#resultsForm(toolCalls));
  }

  /** Somebody else goes on: results would come too late. */
  closeResults() {
    this.calls.querySelector("form")?.remove();
  }

  #tokensButton(tokens) {
    let view = null;
    const toggle = button("Tokens", () => {
      const isOn = view === null;
      if (isOn) this.text.after((view = tokenView(tokens)));
      else { view.remove(); view = null; }
      this.text.hidden = isOn;
      toggle.setAttribute("aria-pressed", isOn);
    }, { class: "quiet", "aria-pressed": "false" });
    return toggle;
  }

  #resultsForm(calls) {
    const fields = calls.map(({ function: { name } }) => make("textarea", { rows: 2, "aria-label": `Result of ${name}` }));
    return make(
      "form", {
        onsubmit: (event) => { event.preventDefault(); this.#onResults(fields.map((field) => field.value)); },
      },
      ...fields.map((field, index) => make("label", { text: `Result of ${calls[index].function.name}` }, field)),
      make("div", { class: "row" }, make("button", { class: "main", text: "Send the results" })),
    );
  }
}

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;  // not whole yet, or the model's mistake
  }
}
