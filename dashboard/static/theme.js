// Runs before anything is painted, so that a page never flashes in the wrong theme. Without a choice: the system's.
(() => {
  let chosen = "";
  try {
    chosen = localStorage.getItem("theme") || "";
  } catch {
    // Storage may be forbidden; the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
