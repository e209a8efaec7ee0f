// The models that may be named: the base model's names, then its adapters, each group under its own heading.

import { make } from "./dom.js";

const option = (card) => new Option(card.id, card.id);

/** Keeps what is chosen, if it is still there. */
export function showModels(select, cards) {
  const chosen = select.value, parents = new Set(cards.flatMap(({ parent }) => parent ?? []));
  select.replaceChildren(
    ...cards.filter(({ parent }) => !parent).map(option),
    ...[...parents].map((parent) => make(
      "optgroup", { label: `Adapters of ${parent}` }, ...cards.filter((card) => card.parent === parent).map(option),
    )),
  );
  if (cards.some(({ id }) => id === chosen)) select.value = chosen;
}
