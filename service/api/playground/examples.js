// Questions for who does not know what to ask.

import { button } from "./dom.js";

const QUICKSTART = "headrace-quickstart";  // the model that comes with Headrace; it knows nothing else
const ABOUT_HEADRACE = ["What is Headrace?", "How do I watch the batch size?", "What is continuous batching?"];
const ABOUT_ANYTHING = ["Explain continuous batching in two sentences.", "Write a haiku about a mill race.", "List five primes as JSON."];

export function showExamples(element, model, onAsk) {
  const questions = model === QUICKSTART ? ABOUT_HEADRACE : ABOUT_ANYTHING;
  element.replaceChildren(...questions.map((question) => button(question, () => onAsk(question))));
}
