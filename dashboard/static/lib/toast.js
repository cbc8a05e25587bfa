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
export async function confirm(title, text, yes) {
  return (await choose(title, [text], [{ value: "yes", label: yes, hurts: true }])) === "yes";
}

/**
 * Asks which of several; resolves to the `value` of the choice, or to "" where nothing is to be done. `texts`: text or nodes, each a paragraph.
 * A choice that `hurts` somebody looks like it. What has the focus at first does nothing, so Enter does no harm.
 */
export function choose(title, texts, choices, keep = "Keep it") {
  return new Promise((resolve) => {
    const words = el("div", { id: "dialog-words" }, texts.filter(Boolean).map((text) => el("p", {}, text)));
    const dialog = el(
      "dialog",
      { className: "dialog", "aria-label": title, "aria-describedby": words.id },
      el("h2", {}, title),
      words,
      el(
        "form",
        { method: "dialog", className: "dialog-buttons" },
        el("button", { className: "button", value: "", autofocus: true }, keep),
        choices.map(({ value, label, hurts }) => el("button", { className: `button ${hurts ? "danger" : "primary"}`, value }, label)),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
