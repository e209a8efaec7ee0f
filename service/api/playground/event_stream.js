// Server-sent events, as this server frames them: `data: JSON`, then an empty line; the last one is [DONE].

/** The values of a stream's events. It throws if the stream breaks off before [DONE]. */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The server broke off its answer.");
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (!frame.startsWith("data: ")) continue;  // a sign of life
      const data = frame.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
