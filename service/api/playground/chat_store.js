// Chats in the browser's storage: so many, and so many characters of them; the oldest make room.

const PREFIX = "headrace.chat.";
export const MAX_CHATS = 100;
export const MAX_CHARACTERS = 2_000_000;  // a browser gives an origin about five million

/** A chat is {id, title, changedMs, messages}. Its item is a line of JSON for the list, then one with the messages. */
export class ChatStore {
  #storage;

  constructor(storage) {
    this.#storage = storage;
  }

  /** [{id, title, changedMs, size}], the latest first. What cannot be read is no chat. */
  list() {
    return this.#ids().flatMap((id) => {
      const item = this.#storage.getItem(PREFIX + id);
      const head = parsed(item.slice(0, item.indexOf("\n")));
      return head ? [{ ...head, id, size: item.length }] : [];
    }).sort((one, other) => other.changedMs - one.changedMs);
  }

  /** Null if it is not there, or not a chat. */
  load(id) {
    const item = this.#storage.getItem(PREFIX + id);
    if (item === null) return null;
    const split = item.indexOf("\n");
    const head = parsed(item.slice(0, split)), messages = parsed(item.slice(split + 1));
    return head && Array.isArray(messages) ? { ...head, id, messages } : null;
  }

  /** Whether there was room, after the oldest others had gone. */
  save({ id, title, changedMs, messages }) {
    const item = `${JSON.stringify({ title, changedMs })}\n${JSON.stringify(messages)}`;
    if (item.length > MAX_CHARACTERS) return false;
    const others = this.list().filter((chat) => chat.id !== id);
    let left = MAX_CHARACTERS - item.length - others.reduce((sum, chat) => sum + chat.size, 0);
    while (others.length >= MAX_CHATS || left < 0) left += this.#dropLast(others);
    for (;;) {
      try {
        this.#storage.setItem(PREFIX + id, item);
        return true;
      } catch {  // the browser's own limit
        if (!others.length) return false;
        this.#dropLast(others);
      }
    }
  }

  remove(id) {
    this.#storage.removeItem(PREFIX + id);
  }

  #dropLast(chats) {
    const { id, size } = chats.pop();
    this.remove(id);
    return size;
  }

  #ids() {
    return Array.from({ length: this.#storage.length }, (_, index) => this.#storage.key(index))
      .filter((key) => key.startsWith(PREFIX))
      .map((key) => key.slice(PREFIX.length));
  }
}

function parsed(json) {
  try {
    return JSON.parse(json);
  } catch {
    return null;
  }
}
