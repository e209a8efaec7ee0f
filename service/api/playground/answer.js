// One answer while it comes: what its chunks add up to.

export class Answer {
  constructor(startedMs) {
    this.startedMs = startedMs;
    this.firstMs = this.lastMs = null;
    this.content = this.reasoning = "";
    this.toolCalls = [];
    this.tokens = [];  // with their log probabilities, if they were asked for
    this.usage = this.reason = null;
  }

  take(chunk, nowMs) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return;
    this.reason = choice.finish_reason ?? this.reason;
    this.tokens.push(...(choice.logprobs?.content ?? []));
    const { content, tool_calls: calls } = choice.delta;
    const reasoning = choice.delta.reasoning_content ?? choice.delta.reasoning;
    if (!content && !reasoning && !calls) return;
    this.firstMs ??= nowMs;
    this.lastMs = nowMs;
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    for (const call of calls ?? []) this.#takeCall(call);
  }

  get isEmpty() {
    return !this.content && !this.reasoning && !this.toolCalls.length;
  }

  /** [name, value] pairs for people. */
  facts() {
    if (this.firstMs === null) return [];
    const facts = [["first token", `${Math.round(this.firstMs - this.startedMs)} ms`]];
    const seconds = (this.lastMs - this.firstMs) / 1000;
    const made = this.usage?.completion_tokens;
    if (made > 1 && seconds > 0) facts.push(["speed", `${((made - 1) / seconds).toFixed(1)} tokens/s`]);
    if (this.usage) facts.push(["tokens", `${this.usage.prompt_tokens} in, ${made} out`]);
    if (this.reason && this.reason !== "stop") facts.push(["ended by", this.reason.replace("_", " ")]);
    return facts;
  }

  #takeCall({ index, id, function: part }) {
    const call = (this.toolCalls[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    call.id ||= id ?? "";
    call.function.name += part?.name ?? "";
    call.function.arguments += part?.arguments ?? "";
  }
}
