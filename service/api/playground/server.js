// Calls of this server. Paths are relative, so that a proxy may put the page below a prefix.

import { readEvents } from "./event_stream.js";

export class Server {
  /** getKey: gives the API key, or "". */
  constructor(getKey) {
    this.getKey = getKey;
  }

  /** Model cards: the base model's names and its adapters (whose `parent` is the base model). */
  async models() {
    return (await (await this.#call("v1/models")).json()).data;
  }

  async version() {
    return (await (await this.#call("version")).json()).version;
  }

  /** The text that Prometheus reads. */
  async metrics() {
    return (await this.#call("metrics")).text();
  }

  /** The chunks of a streamed chat completion; throws what the server says if it refuses, or fails on the way. */
  async *chat(request, signal) {
    const response = await this.#call("v1/chat/completions", { method: "POST", body: JSON.stringify(request), signal });
    for await (const event of readEvents(response.body)) {
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }

  async #call(path, options = {}) {
    const key = this.getKey();
    const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error("The server cannot be reached.");
    }
    if (!response.ok) throw new Error(await inItsWords(response));
    return response;
  }
}

async function inItsWords(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}
