// An answer's tokens, each tinted by how probable it was. The mouse or the arrow keys choose one; a card tells what else
// might have stood there.

import { make } from "./dom.js";

const TINTS = [0.1, 0.3, 0.6, 0.9];  // below the first: p0, the strongest

/** tokens: as the server's `logprobs.content` has them. */
export function tokenView(tokens) {
  const spans = tokens.map(({ token, logprob }) => make("span", { class: tintOf(Math.exp(logprob)), text: token }));
  const view = make(
    "div",
    { class: "tokens", tabindex: 0, role: "group", "aria-label": "Tokens: the arrow keys go through them" },
    ...spans,
  );
  let chosen = -1, card = null;
  const choose = (index) => {
    spans[chosen]?.classList.remove("chosen");
    card?.remove();
    chosen = index;
    if (index < 0) return;
    spans[index].classList.add("chosen");
    card = cardOf(tokens[index]);
    view.append(card);
    place(card, spans[index]);
  };
  view.onmouseover = ({ target }) => choose(spans.indexOf(target));
  view.onmouseleave = () => choose(-1);
  view.onblur = () => choose(-1);
  view.onkeydown = (event) => {
    const step = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(spans.length - 1, step)));
    spans[chosen].scrollIntoView({ block: "nearest" });
    place(card, spans[chosen]);
  };
  return view;
}

function tintOf(probability) {
  const tint = TINTS.findIndex((limit) => probability < limit);
  return tint < 0 ? null : `p${tint}`;
}

function cardOf({ token, logprob, top_logprobs: alternatives }) {
  const isAmong = alternatives.some((each) => each.token === token);
  const rows = isAmong ? alternatives : [...alternatives, { token, logprob }];
  return make("table", { id: "token-card", role: "status" }, make("tbody", {}, ...rows.map((each) => make(
    "tr", { class: each.token === token ? "is-token" : null },
    make("td", { text: JSON.stringify(each.token) }),
    make("td", { text: percent(each.logprob) }),
  ))));
}

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return value && value < 0.01 ? "< 0.01 %" : `${value.toFixed(2)} %`;
}

/** Below the token, or above it where there is no room below. */
function place(card, span) {
  const box = span.getBoundingClientRect(), { width, height } = card.getBoundingClientRect();
  card.style.left = `${Math.max(4, Math.min(box.left, innerWidth - width - 4))}px`;
  card.style.top = `${box.bottom + height + 8 < innerHeight ? box.bottom + 4 : box.top - height - 4}px`;
}
