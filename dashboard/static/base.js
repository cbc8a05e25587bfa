// On every page: the theme switch, and moments in the reader's own time.
import { keepMoments } from "./lib/moments.js";

const NEXT = { "": "light", light: "dark", dark: "" };
const NAME = { "": "as the system has it", light: "light", dark: "dark" };

const html = document.documentElement;
const button = document.getElementById("theme");

function show() {
  const now = html.dataset.theme ?? "";
  button.title = `Theme: ${NAME[now]}. Click for: ${NAME[NEXT[now]]}`;
  button.setAttribute("aria-label", button.title);
}

button.addEventListener("click", () => {
  const next = NEXT[html.dataset.theme ?? ""];
  if (next) html.dataset.theme = next;
  else delete html.dataset.theme;
  try {
    if (next) localStorage.setItem("theme", next);
    else localStorage.removeItem("theme");
  } catch {
    // It then holds for this page only.
  }
  show();
  document.dispatchEvent(new Event("theme"));
});
show();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));

keepMoments(document);
