// Hears from the dashboard's process that something has changed, and says when that connection is lost.
import { root } from "./api.js";

const RETRY_MS = [500, 1000, 2000, 5000, 10_000];
const SLOWEST_MS = 10_000;

/**
 * Calls `changed(tables)` when these tables have moved on, or without any when everything may have, and `state("live" | "lost" | "paused")` as the
 * connection comes and goes. Nothing is heard while the tab is hidden; when it is shown again, `changed()` comes at once.
 * Returns what ends it.
 */
export function listen({ changed, state }) {
  let source = null;
  let attempt = 0;
  let timer = 0;
  let isOver = false;

  function open() {
    clearTimeout(timer);
    source?.close();
    if (isOver) return;
    source = new EventSource(`${root}dash/api/stream`);
    source.addEventListener("open", () => {
      attempt = 0;
      state("live");
      changed();
    });
    source.addEventListener("changed", (event) => changed(JSON.parse(event.data).tables));
    source.addEventListener("error", () => {
      source.close();
      state("lost");
      timer = setTimeout(open, RETRY_MS[Math.min(attempt++, RETRY_MS.length - 1)]);
    });
  }

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
      state("paused");
    } else open();
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => event.persisted && open());
  if (document.hidden) state("paused");
  else open();
  return () => {
    isOver = true;
    close();
  };
}

/**
 * Returns a function that wants `run`, which then happens at most once in `gapMs()`, more rarely if it takes long, and
 * once more if it was wanted meanwhile. With `{ now: true }` it happens at once, and can be awaited, beside one that is
 * still going on: a new question does not wait for the answer to an old one.
 */
export function calm(run, gapMs) {
  let running = 0;
  let wanted = false;
  let beganMs = -Infinity;
  let tookMs = 0;
  let timer = 0;

  async function go() {
    clearTimeout(timer);
    timer = 0;
    running += 1;
    wanted = false;
    beganMs = performance.now();
    try {
      await run();
    } finally {
      tookMs = performance.now() - beganMs;
      running -= 1;
      if (wanted) want();
    }
  }

  function want({ now = false } = {}) {
    if (now) return go();
    wanted = true;
    if (running || timer) return undefined;
    timer = setTimeout(go, Math.max(0, beganMs + Math.max(gapMs(), Math.min(3 * tookMs, SLOWEST_MS)) - performance.now()));
    return undefined;
  }

  return want;
}
