// Copying to the clipboard, also where the page came over plain HTTP from another machine.

import { button, make } from "./dom.js";

const SHOWN_MS = 1500;

/** getText: gives what is copied, when it is. */
export function copyButton(getText, label) {
  const element = button("Copy", async () => {
    element.textContent = (await copy(getText())) ? "Copied" : "Not allowed";
    setTimeout(() => { element.textContent = "Copy"; }, SHOWN_MS);
  }, { class: "quiet", title: label });
  return element;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {  // there is no clipboard but for a secure origin; the older way has no need of one
    const field = make("textarea", { "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    return isDone;
  }
}
