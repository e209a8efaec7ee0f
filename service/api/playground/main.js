// Where the page's parts are made and joined.

import { showChats } from "./chat_list.js";
import { ChatStore } from "./chat_store.js";
import { Conversation } from "./conversation.js";
import { byId, make } from "./dom.js";
import { showExamples } from "./examples.js";
import { showModels } from "./model_list.js";
import { startPanels } from "./panels.js";
import { Server } from "./server.js";
import { ServerStrip } from "./server_strip.js";
import { Settings } from "./settings.js";
import { openStorage } from "./storage.js";
import { TalkView } from "./talk_view.js";
import { startTheme } from "./theme.js";

const KEY = "headrace.key", OPEN = "headrace.open";  // of the tab
const box = byId("message"), send = byId("send"), model = byId("model"), status = byId("status"), announce = byId("announce");
const lasting = openStorage("localStorage"), ofTheTab = openStorage("sessionStorage");

startTheme(byId("theme"), lasting);
const panels = startPanels([[byId("chats-toggle"), byId("chats")], [byId("settings-toggle"), byId("settings")]]);
const server = new Server(() => byId("key").value.trim());
const settings = new Settings(byId("fields"), lasting);
const store = new ChatStore(lasting);
const talk = new TalkView(byId("talk"), byId("turns"), byId("to-end"));
const conversation = new Conversation(server, settings, talk, () => model.value, {
  onStart: () => setRunning(true),
  onProgress: say,
  onEnd(facts, error) {
    setRunning(false);
    say(facts);
    announce.textContent = error ? "" : "The answer is complete.";  // an error announces itself
  },
  onChange(chat) {
    if (!store.save(chat)) say([["not kept", "this chat is longer than the browser may store"]]);
    showPlace();
  },
  onFieldError(error) {
    say([["not sent", error.message]]);
    announce.textContent = error.message;
    if (!error.element) throw error;
    panels.show(byId("settings"));
    error.element.closest("details").open = true;
    error.element.focus();
  },
});

function say(facts) {
  status.replaceChildren(...facts.map(([name, value]) => make("span", {}, `${name} `, make("b", { text: value }))));
}

function setRunning(isRunning) {
  send.textContent = isRunning ? "Stop" : "Send";
  byId("talk").setAttribute("aria-busy", isRunning);
  if (isRunning) announce.textContent = "The model answers.";
}

/** Which chats there are, and which one this is. */
function showPlace() {
  byId("empty").hidden = !conversation.isEmpty;
  ofTheTab.setItem(OPEN, conversation.id);
  showChats(byId("chat-list"), store.list(), conversation.id, (id) => openChat(store.load(id)), async (id) => {
    store.remove(id);
    if (id === conversation.id) await openChat(null);
    else showPlace();
  });
}

async function openChat(chat) {
  await conversation.open(chat);
  panels.hide();
  showPlace();
  say([]);
  box.focus();
}

let cards = [];
async function loadModels() {
  try {
    cards = await server.models();
    byId("version").textContent = await server.version();
  } catch (error) {
    say([["server", error.message]]);
    return;
  }
  showModels(model, cards);
  showModel();
}

function showModel() {
  const card = cards.find(({ id }) => id === model.value);
  settings.showDefaults(card.default_sampling);
  showExamples(byId("examples"), card.id, ask);
  if (!conversation.isRunning) say([["context", `${card.max_model_len.toLocaleString("en")} tokens`]]);
}

async function ask(text) {
  panels.hide();
  box.value = "";
  fit();
  if (!(await conversation.send(text))) {
    box.value = text;
    fit();
  } else box.focus();
}

function fit() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

box.oninput = fit;
box.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
};
byId("form").onsubmit = (event) => {
  event.preventDefault();
  const text = box.value.trim();
  if (conversation.isRunning) conversation.stop();
  else if (text) ask(text);
};
document.addEventListener("keydown", (event) => { if (event.key === "Escape") conversation.stop(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) loadModels(); });  // adapters come and go
window.addEventListener("storage", showPlace);  // another tab's chats
byId("new-chat").onclick = () => openChat(null);
model.onchange = showModel;
byId("key").value = ofTheTab.getItem(KEY) ?? "";
byId("key").oninput = () => ofTheTab.setItem(KEY, byId("key").value);
byId("key").onchange = loadModels;

const open = ofTheTab.getItem(OPEN);
await conversation.open(open ? store.load(open) : null);
showPlace();
await loadModels();
new ServerStrip(byId("strip"), server, loadModels).run();
