// Prometheus's text format, as far as the strip needs it.

/** Sums the samples of each name over their labels; labels: name -> the one label, as written, that counts. */
export function readMetrics(text, names, labels = {}) {
  const sums = Object.fromEntries(names.map((name) => [name, 0]));
  for (const line of text.split("\n")) {
    const [, name, label, value] = /^([a-z_:]+)(?:\{([^}]*)\})? (\S+)$/.exec(line) ?? [];
    if (name in sums && (!(name in labels) || labels[name] === label)) sums[name] += Number(value);
  }
  return sums;
}
