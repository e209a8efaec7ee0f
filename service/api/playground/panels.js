// On a narrow screen chats and settings lie over the talk, and a button shows each.

/** buttons: [button, panel] pairs; at most one panel is shown. Returns what hides them all. */
export function startPanels(buttons) {
  const set = (shown) => {
    for (const [button, panel] of buttons) {
      panel.classList.toggle("shown", panel === shown);
      button.setAttribute("aria-expanded", panel === shown);
    }
  };
  for (const [button, panel] of buttons) {
    button.onclick = () => {
      const isShown = panel.classList.contains("shown");
      set(isShown ? null : panel);
      if (!isShown) panel.querySelector("button, select, input").focus();
    };
    panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !panel.classList.contains("shown")) return;
      event.stopPropagation();
      set(null);
      button.focus();
    });
  }
  return { hide: () => set(null), show: set };
}
