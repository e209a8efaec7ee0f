// The list of kept chats.

import { button, make } from "./dom.js";

/** onOpen and onRemove are called with a chat's id. */
export function showChats(list, chats, openId, onOpen, onRemove) {
  list.replaceChildren(...chats.map(({ id, title }) => make(
    "li", {},
    button(title, () => onOpen(id), { class: "open", title, "aria-current": id === openId ? "true" : null }),
    button("×", () => onRemove(id), { class: "remove", "aria-label": `Delete the chat ${title}` }),
  )));
}
