// The chat that is open: its messages, and what may be done with them.
//
// A message is
//   {role: "user", content, failed?}            failed: why there was no answer; it is then left out of later prompts
//   {role: "assistant", model, content, reasoning, toolCalls, facts, isJson, error?}
//   {role: "tool", name, tool_call_id, content}
// and the turn at its index shows it.

import { Answer } from "./answer.js";
import { FrameLoop } from "./frame_loop.js";
import { AnswerTurn, WrittenTurn } from "./turn_view.js";

const TITLE_LENGTH = 60;

export class Conversation {
  #server;
  #settings;
  #talk;
  #getModel;
  #observer;
  #id;
  #messages = [];
  #lastTurn = null;
  #running = null;  // {abort, ended}

  /**
   * observer: told of what happens. onStart(), onProgress(facts), onEnd(facts, error), onChange(chat), onFieldError(error).
   */
  constructor(server, settings, talk, getModel, observer) {
    this.#server = server;
    this.#settings = settings;
    this.#talk = talk;
    this.#getModel = getModel;
    this.#observer = observer;
    this.#id = crypto.getRandomValues(new Uint32Array(2)).join("");
  }

  get id() {
    return this.#id;
  }

  get isEmpty() {
    return !this.#messages.length;
  }

  get isRunning() {
    return this.#running !== null;
  }

  /** Another chat; without one, a new one. */
  async open(chat = null) {
    await this.stop();
    this.#id = chat?.id ?? crypto.getRandomValues(new Uint32Array(2)).join("");
    this.#messages = [];
    this.#talk.cut(0);
    for (const message of chat?.messages ?? []) {
      const turn = this.#add(message);
      if (message.role === "assistant") turn.finish();
    }
    this.#talk.follow();
  }

  /** Whether the question was asked; if not, the observer has been told why. */
  async send(text) {
    return this.#ask(this.#messages.length, [{ role: "user", content: text }]);
  }

  /** Ends the answer that is being made; what has come of it stays. */
  async stop() {
    while (this.#running) {  // somebody else may have waited, too, and asked at once
      this.#running.abort.abort();
      await this.#running.ended;
    }
  }

  #add(message) {
    const index = this.#messages.push(message) - 1;
    if (this.#lastTurn instanceof AnswerTurn) this.#lastTurn.closeResults();
    this.#lastTurn = message.role === "assistant"
      ? new AnswerTurn(message, () => this.#ask(index, []), (texts) => this.#sendResults(index, texts))
      : new WrittenTurn(message, (text) => this.#ask(index, [{ ...message, content: text, failed: undefined }]));
    this.#talk.add(this.#lastTurn.element);
    return this.#lastTurn;
  }

  #sendResults(index, texts) {
    const results = this.#messages[index].toolCalls.map((call, number) => (
      { role: "tool", name: call.function.name, tool_call_id: call.id, content: texts[number] }
    ));
    return this.#ask(index + 1, results);
  }

  /** Puts these messages in the place of all from `index` on, and has them answered. */
  async #ask(index, messages) {
    let fields;
    try {
      fields = this.#settings.request();
    } catch (error) {
      this.#observer.onFieldError(error);
      return false;
    }
    await this.stop();
    this.#messages.length = index;
    this.#talk.cut(index);
    for (const message of messages) this.#add(message);
    const abort = new AbortController();
    const ended = this.#answer(fields, abort.signal);
    this.#running = { abort, ended: ended.finally(() => { this.#running = null; }) };
    return true;
  }

  async #answer(fields, signal) {
    const model = this.#getModel(), isJson = this.#settings.isJson;
    const request = {
      model,
      messages: prompt(this.#settings.system, this.#messages),
      ...fields,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    const message = { role: "assistant", model, content: "", reasoning: "", toolCalls: [], facts: [], isJson };
    const turn = this.#add(message);
    this.#talk.follow();
    this.#observer.onStart();
    this.#tellChange();
    const answer = new Answer(performance.now());
    const frames = new FrameLoop(() => {
      turn.show(answer);
      this.#talk.keepUp();
      this.#observer.onProgress(answer.facts());
    });
    let error = null;
    try {
      for await (const chunk of this.#server.chat(request, signal)) {
        answer.take(chunk, performance.now());
        frames.ask();
      }
    } catch (problem) {
      if (problem.name === "AbortError") answer.reason = "stopped";
      else error = problem.message;
    }
    frames.now();
    this.#end(turn, answer, error);
  }

  #end(turn, answer, error) {
    const { content, reasoning, toolCalls, tokens } = answer;
    if (answer.isEmpty && answer.reason !== "stop" && answer.reason !== "length") this.#fail(error ?? "Stopped before the first token.");
    else {
      Object.assign(turn.message, { content, reasoning, toolCalls, facts: answer.facts(), error: error ?? undefined });
      turn.finish(tokens);
    }
    this.#talk.keepUp();
    this.#observer.onEnd(answer.facts(), error);
    this.#tellChange();
  }

  /** Nothing was said: what was asked says why, and can be asked again. */
  #fail(why) {
    this.#messages.pop();
    this.#talk.cut(this.#messages.length);
    const asked = this.#messages.pop();
    this.#talk.cut(this.#messages.length);
    this.#add({ ...asked, failed: why });
  }

  #tellChange() {
    const first = this.#messages.find((message) => message.role === "user");
    const title = first.content.trim().slice(0, TITLE_LENGTH);
    this.#observer.onChange({ id: this.#id, title, changedMs: Date.now(), messages: this.#messages });
  }
}

/** The messages as the API takes them. */
function prompt(system, messages) {
  const said = messages.filter((message) => !message.failed).map(({ role, content, toolCalls, tool_call_id }) => {
    if (role === "tool") return { role, content, tool_call_id };
    return { role, content, ...(toolCalls?.length ? { tool_calls: toolCalls } : {}) };
  });
  return [...(system ? [{ role: "system", content: system }] : []), ...said];
}
