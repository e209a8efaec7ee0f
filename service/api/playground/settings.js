// The settings' form, and the request fields that it stands for. A field that is empty is not sent: the server's own
// default counts.

import { byId } from "./dom.js";

const KEY = "headrace.settings";
const NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "max_tokens",
];
const TEXTS = ["system", "stop", "format", "schema", "tools", "tool_choice"];
const FIELDS = [...NUMBERS, ...TEXTS, "logprobs"];
const NUM_ALTERNATIVES = 5;  // tokens that might have stood there, shown with each

/** A field of the form that the page cannot send. */
export class FieldError extends Error {
  constructor(element, message) {
    super(message);
    this.element = element;
  }
}

export class Settings {
  #storage;

  constructor(form, storage) {
    this.#storage = storage;
    this.#fill(storage.getItem(KEY));
    form.onsubmit = (event) => event.preventDefault();
    form.oninput = () => this.#keep();
    form.onreset = () => setTimeout(() => { this.#showUse(); this.#keep(); });  // the fields are empty after the event
    this.#showUse();
  }

  /** Shows a model's defaults in the empty fields. */
  showDefaults(sampling) {
    for (const [name, value] of Object.entries(sampling)) {
      const field = byId(name);
      if (field) field.placeholder = name === "top_k" && !value ? "all" : value;
    }
  }

  get system() {
    return byId("system").value.trim();
  }

  /** Whether an answer will be JSON. */
  get isJson() {
    return byId("format").value !== "";
  }

  /** The request's fields; throws FieldError for what is not JSON, or not the kind of it that is asked for. */
  request() {
    const fields = {};
    for (const name of NUMBERS) if (byId(name).value !== "") fields[name] = Number(byId(name).value);
    const stops = byId("stop").value.split("\n").filter(Boolean).map(unescaped);
    if (stops.length) fields.stop = stops;
    const format = this.#format();
    if (format) fields.response_format = format;
    const tools = json("tools", "The tools");
    if (tools !== undefined) {
      fields.tools = tools;
      if (byId("tool_choice").value) fields.tool_choice = byId("tool_choice").value;
    }
    if (byId("logprobs").checked) Object.assign(fields, { logprobs: true, top_logprobs: NUM_ALTERNATIVES });
    return fields;
  }

  #format() {
    const type = byId("format").value;
    if (type !== "json_schema") return type ? { type } : null;
    const schema = json("schema", "The schema");
    if (schema === undefined) throw refused("schema", "There is no schema yet.");
    return { type, json_schema: { name: "answer", schema } };
  }

  #fill(stored) {
    let values = {};
    try { values = JSON.parse(stored) ?? {}; } catch { /* not ours: the defaults */ }
    for (const name of FIELDS) {
      if (name === "logprobs") byId(name).checked = values[name] === true;
      else byId(name).value = values[name] ?? "";
    }
  }

  #keep() {
    this.#showUse();
    const values = {};
    for (const name of FIELDS) {
      const value = name === "logprobs" ? byId(name).checked : byId(name).value;
      if (value) values[name] = value;
    }
    try { this.#storage.setItem(KEY, JSON.stringify(values)); } catch { /* full: they last as long as the page */ }
  }

  #showUse() {
    byId("schema").parentNode.hidden = byId("format").value !== "json_schema";
    for (const name of ["schema", "tools"]) byId(name).removeAttribute("aria-invalid");
  }
}

const unescaped = (line) => line.replace(/\\([nt\\])/g, (_, letter) => ({ n: "\n", t: "\t", "\\": "\\" })[letter]);

/** The value of a field's JSON; undefined if the field is empty. */
function json(id, subject) {
  const text = byId(id).value.trim();
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw refused(id, `${subject} cannot be read as JSON: ${error.message}.`);
  }
}

function refused(id, message) {
  byId(id).setAttribute("aria-invalid", "true");
  return new FieldError(byId(id), message);
}
