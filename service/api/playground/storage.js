// The browser's storages; a browser that forbids them gets one that lasts as long as the page.

/** name: "localStorage" or "sessionStorage". */
export function openStorage(name) {
  try {
    return window[name];
  } catch {
    return new PageStorage();
  }
}

class PageStorage {
  #items = new Map();

  get length() { return this.#items.size; }
  key(index) { return [...this.#items.keys()][index]; }
  getItem(key) { return this.#items.get(key) ?? null; }
  setItem(key, value) { this.#items.set(key, value); }
  removeItem(key) { this.#items.delete(key); }
}
