// Short messages in the corner, and the question before something that hurts.
import { el } from "./dom.js";

const SHOWN_MS = 6000;

/** `kind`: ok, bad or info. A bad one stays until it is closed. */
export function toast(text, kind = "ok") {
  const close = el("button", { type: "button", className: "toast-close", "aria-label": "Close" }, "×");
  const made = el("div", { className: `toast ${kind}`, role: kind === "bad" ? "alert" : null }, el("span", {}, text), close);
  const remove = () => made.remove();
  close.addEventListener("click", remove);
  document.getElementById("toasts").append(made);
  if (kind !== "bad") setTimeout(remove, SHOWN_MS);
}

/** Asks; resolves to true for yes. */
export function confirm(title, text, yes) {
  return new Promise((resolve) => {
    const dialog = el(
      "dialog",
      { className: "dialog", "aria-label": title },
      el("h2", {}, title),
      el("p", {}, text),
      el(
        "form",
        { method: "dialog", className: "dialog-buttons" },
        el("button", { className: "button", value: "no", autofocus: true }, "Keep it"),
        el("button", { className: "button danger", value: "yes" }, yes),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
