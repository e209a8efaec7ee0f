// Light or dark: the system's, until the button says otherwise.

const KEY = "headrace.theme";

/** storage: of this browser. */
export function startTheme(button, storage) {
  const root = document.documentElement;
  const stored = storage.getItem(KEY);
  if (stored) root.dataset.theme = stored;
  button.onclick = () => {
    const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    storage.setItem(KEY, root.dataset.theme);
  };
}
