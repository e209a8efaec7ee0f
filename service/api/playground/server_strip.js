// The strip with the server's state: requests that run and wait, KV cache in use, tokens a second.

import { make } from "./dom.js";
import { readMetrics } from "./metrics_text.js";

const PERIOD_MS = 2000;
const RUNNING = "headrace_requests_running", WAITING = "headrace_requests_waiting";
const KV = "headrace_kv_blocks_used_ratio", TOKENS = "headrace_tokens_total";

/** Asks while the page can be seen, and one question at a time. */
export class ServerStrip {
  #element;
  #server;
  #onReturn;
  #last = null;  // {tokens, atMs}
  #isThere = true;

  /** onReturn: called when the server answers again. */
  constructor(element, server, onReturn) {
    this.#element = element;
    this.#server = server;
    this.#onReturn = onReturn;
  }

  async run() {
    for (;;) {
      if (!document.hidden) await this.#look();
      await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
    }
  }

  async #look() {
    try {
      const text = await this.#server.metrics();
      const now = readMetrics(text, [RUNNING, WAITING, KV, TOKENS], { [TOKENS]: 'kind="generated"' });
      this.#show(now);
      if (!this.#isThere) this.#onReturn();
      this.#isThere = true;
    } catch (error) {
      this.#isThere = false;
      this.#last = null;
      this.#element.replaceChildren(make("span", { class: "bad", text: error.message }));
    }
  }

  #show(now) {
    const atMs = performance.now(), last = this.#last;
    this.#last = { tokens: now[TOKENS], atMs };
    const perSecond = last ? ((now[TOKENS] - last.tokens) * 1000) / (atMs - last.atMs) : 0;
    const facts = [
      ["running", now[RUNNING]],
      ["waiting", now[WAITING]],
      ["KV cache", `${(100 * now[KV]).toFixed(now[KV] < 0.1 ? 1 : 0)} %`],
      ["tokens/s", Math.round(Math.max(0, perSecond)).toLocaleString("en")],
    ];
    this.#element.replaceChildren(...facts.map(([name, value]) => make("span", {}, `${name} `, make("b", { text: value }))));
  }
}
