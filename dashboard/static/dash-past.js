// Numbers and figures of a range of time.
import { get, root } from "./lib/api.js";
import { Chart } from "./lib/charts.js";
import { el, keyed, setAttribute, setClass, setText } from "./lib/dom.js";
import { count, duration, number, percent, short } from "./lib/format.js";
import { Latest } from "./lib/latest.js";

const FIGURES = ["residency", "gpus", "queue", "tokens"];

/** Tile to its value and the line below it. */
const TILES = {
  requests: (row) => [short(row.requests), [row.failed && count(row.failed, "failure"), row.cancelled && `${number(row.cancelled)} cancelled`, row.open && `${number(row.open)} open`].filter(Boolean).join(", ")],
  success: (row) => [percent(row.success_share), row.failed ? `${count(row.failed, "failure")}, ${count(row.crashes, "crash", "crashes")}` : "no failures", row.success_share !== null && row.success_share < 0.95 ? "bad" : ""],
  wait: (row) => [duration(row.wait_p50_us), row.wait_p95_us === null ? "" : `95 % within ${duration(row.wait_p95_us)}`],
  ttft: (row) => [duration(row.ttft_p50_us), row.ttft_p95_us === null ? "" : `95 % within ${duration(row.ttft_p95_us)}`],
  swaps: (row) => [short(row.swaps), row.swaps ? `${duration(row.swapping_us)} swapping` : "no time swapping"],
  prompt: (row) => [short(row.prompt_tokens), row.cached_share === null ? "" : `${percent(row.cached_share)} from the cache`],
  generated: (row) => [short(row.completion_tokens), row.cost === null ? "tokens" : `tokens, worth $${row.cost < 1 ? row.cost.toPrecision(2) : row.cost.toFixed(2)}`],
  waste: (row) => [short(row.unread_frames), "tokens nobody read"],
};

export class Past {
  #charts = new Map();
  #hueOf;
  #tilesAsked = new Latest();
  #figuresAsked = new Latest();
  #drawn = "";

  /** `onRange(since_ms, until_ms)`: somebody drew a range with the mouse. */
  constructor({ plotly, hueOf, onRange }) {
    this.#hueOf = hueOf;
    for (const name of FIGURES) {
      const node = document.querySelector(`[data-panel="${name}"]`);
      const place = el("div");
      node.append(place);
      const onPoint = name === "residency" ? openSwap : undefined;
      this.#charts.set(name, { node, chart: new Chart(place, plotly, { onRange, onPoint }), place });
      state(node, "loading", "Loading …");
    }
  }

  async tiles(query) {
    const turn = this.#tilesAsked.begin();
    let row;
    try {
      [row] = (await get(`dash/api/panels/tiles?${new URLSearchParams(query)}`, turn)).rows;
    } catch {
      if (turn.isOver()) return;
      for (const tile of document.querySelectorAll("[data-tile]")) fill(tile, "–", "");
      return;
    }
    if (turn.isOver()) return;
    for (const tile of document.querySelectorAll("[data-tile]")) {
      fill(tile, ...TILES[tile.dataset.tile](row));
    }
  }

  async figures(query) {
    const turn = this.#figuresAsked.begin();
    const parameters = new URLSearchParams(query);
    // Of another range: what is drawn is not what was asked for, until it is drawn anew.
    if (this.#drawn !== String(parameters)) {
      for (const { node, place } of this.#charts.values()) if (place.children.length) setClass(node, "figure stale");
    }
    this.#drawn = String(parameters);
    await Promise.all(FIGURES.map((name) => this.#figure(name, parameters, turn)));
  }

  async #figure(name, parameters, turn) {
    const { node, chart, place } = this.#charts.get(name);
    try {
      const { figure } = await get(`dash/api/panels/${name}?rows=false&${parameters}`, turn);
      if (turn.isOver()) return;
      place.hidden = !figure;
      if (figure) {
        if (await chart.draw(figure)) state(node, "", "");
      } else {
        chart.clear();
        state(node, "empty", node.dataset.empty);
      }
      if (name === "residency") this.#legend(figure);
    } catch (error) {
      if (turn.isOver()) return;
      // What was drawn stays, and is said to be old.
      if (place.hidden || !place.children.length) state(node, "error", `This could not be drawn: ${error.message}.`);
      else setClass(node, "figure stale");
    }
  }

  #legend(figure) {
    const traces = figure?.data.filter((trace) => trace.meta) ?? [];
    const models = [...new Set(traces.map((trace) => trace.meta.model))].sort();
    const shown = models.slice(0, 12);
    const more = models.length - shown.length;
    keyed(document.getElementById("residency-legend"), more ? [...shown, null] : shown, (model) => model ?? "", () => el("span"), (node, model) => {
      setClass(node, model === null ? "" : "name chip");
      setText(node, model ?? `and ${more} more`);
      setAttribute(node, "title", model);
      setAttribute(node, "data-hue", model === null ? null : (this.#hueOf(model) ?? null));
    });
  }
}

function fill(tile, value, note, kind = "") {
  setClass(tile, kind ? `tile ${kind}` : "tile");
  setText(tile.children[1], value);
  setText(tile.children[2], note || "\u00a0");
  setAttribute(tile.children[2], "title", note);
}

/** One line over a figure's place; none with an empty kind. */
function state(node, kind, text) {
  const said = [...node.children].find((child) => child.dataset.state !== undefined);
  setClass(node, "figure");
  if (!kind) {
    said?.remove();
    return;
  }
  const line = said ?? node.appendChild(el("div", { dataset: { state: "" } }));
  setClass(line, kind);
  setText(line, text);
}

function openSwap(point) {
  if (point.data.name === "swaps") location.assign(`${root}dash/swaps/${point.customdata}`);
}
