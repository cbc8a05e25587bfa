// A page that tells of something that still goes on: asked for again each second until it has ended.
import { drawAll, keepFigures } from "./lib/embedded.js";
import { keepMoments } from "./lib/moments.js";

const EVERY_MS = 1000;
const TROUBLE_MS = 5000;

const page = () => document.querySelector(".story");

function isBusy() {
  // Neither a selection nor what has the focus is taken from under the reader's hands.
  const live = page();
  const chosen = document.getSelection();
  return document.hidden || (!chosen.isCollapsed && live.contains(chosen.anchorNode));
}

async function renew() {
  const response = await fetch("?part=1", { credentials: "same-origin" });
  if (!response.ok) return TROUBLE_MS;
  const made = new DOMParser().parseFromString(await response.text(), "text/html").querySelector(".story");
  if (!made) return TROUBLE_MS;
  const focused = document.activeElement?.getAttribute?.("href");
  replaceChanged(page(), made);
  keepMoments(page());
  drawAll(page());
  if (focused) page().querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  return EVERY_MS;
}

/** Only the parts that differ are replaced, so that figures and scroll positions of the others stay. */
function replaceChanged(old, made) {
  old.dataset.live = made.dataset.live;
  const before = [...old.children];
  const after = [...made.children];
  if (before.length !== after.length) {
    old.replaceChildren(...after);
    return;
  }
  before.forEach((child, place) => {
    if (source(child) !== after[place].outerHTML) {
      sources.set(after[place], after[place].outerHTML);
      keepFigures(child, after[place]);
      child.replaceWith(after[place]);
    }
  });
}

const sources = new WeakMap();
const source = (node) => sources.get(node) ?? node.outerHTML;

function remember() {
  for (const child of page().children) sources.set(child, child.outerHTML);
}

async function watch() {
  let pause = EVERY_MS;
  while (page()?.dataset.live === "1") {
    await new Promise((resolve) => setTimeout(resolve, pause));
    try {
      pause = isBusy() ? EVERY_MS : await renew();
    } catch {
      pause = TROUBLE_MS;
    }
  }
}

remember();
drawAll(document);
watch();
