// A page that tells of something that still goes on: asked for again when the tables have changed, until it has ended.
import { drawAll, keepFigures } from "./lib/embedded.js";
import { calm, listen } from "./lib/live.js";
import { keepMoments } from "./lib/moments.js";

const GAP_MS = 1000;
const TROUBLE_MS = 5000;
const LAST_MS = 1500;

const page = () => document.querySelector(".story");
const isLive = () => page()?.dataset.live === "1";

/** Neither a selection nor what has the focus is taken from under the reader's hands. */
function isSelected() {
  const chosen = document.getSelection();
  return !chosen.isCollapsed && page().contains(chosen.anchorNode);
}

const renew = calm(async () => {
  if (!isLive() || document.hidden) return;
  if (isSelected()) {
    document.addEventListener("selectionchange", again, { once: true });
    return;
  }
  try {
    await replace();
  } catch {
    setTimeout(renew, TROUBLE_MS);
  }
  if (!isLive()) end();
}, () => GAP_MS);

/** What was seen of it last, as the last tokens of a stream, comes into the tables a moment after its end. */
function end() {
  stopFollowing();
  setTimeout(() => isSelected() || replace().catch(() => {}), LAST_MS);
}

const again = () => renew();

async function replace() {
  const response = await fetch("?part=1", { credentials: "same-origin" });
  const made = new DOMParser().parseFromString(await response.text(), "text/html").querySelector(".story");
  if (!response.ok || !made) throw new Error(`the answer was ${response.status}`);
  const focused = document.activeElement?.getAttribute?.("href");
  replaceChanged(page(), made);
  keepMoments(page());
  drawAll(page());
  if (focused) page().querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
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

/** Until it has ended. What no table tells of, a post-mortem in the making, is asked for by the clock. */
function follow() {
  if (page().dataset.follow === "clock") {
    const clock = setInterval(renew, GAP_MS);
    return () => clearInterval(clock);
  }
  return listen({ changed: again, state: () => {} });
}

remember();
drawAll(document);
const stopFollowing = isLive() ? follow() : () => {};
