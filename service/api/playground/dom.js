// Elements: found by their ids, and made.

export const byId = (id) => document.getElementById(id);

/** An element with properties (`class`, `text`, `on<event>`, attributes; null leaves one out) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const button = (text, onclick, properties = {}) => make("button", { type: "button", text, onclick, ...properties });
