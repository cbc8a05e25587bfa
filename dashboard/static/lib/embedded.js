// Figures that came in a page: <div class="figure" data-plotly="URL" data-figure="JSON">.
import { Chart } from "./charts.js";
import { el } from "./dom.js";

/** Place to its chart and to what is drawn there, for those that are on the page. */
const charts = new Map();
const figures = (within) => [...within.querySelectorAll(".figure[data-figure]")];

/** Draws those that are not drawn as they are. */
export function drawAll(within) {
  for (const [node, { chart }] of charts) {
    if (node.isConnected) continue;
    chart.dispose();
    charts.delete(node);
  }
  for (const node of figures(within)) {
    if (!charts.has(node)) charts.set(node, { chart: new Chart(node, node.dataset.plotly), drawn: "" });
    const known = charts.get(node);
    if (known.drawn === node.dataset.figure) continue;
    known.drawn = node.dataset.figure;
    known.chart.draw(JSON.parse(node.dataset.figure)).catch((error) => {
      known.drawn = "";
      node.replaceChildren(el("div", { className: "error" }, `This could not be drawn: ${error.message}.`));
    });
  }
}

/** Puts the figures of `old` into what is to take its place, so that they are redrawn and do not flicker. */
export function keepFigures(old, made) {
  const before = figures(old);
  const after = figures(made);
  if (before.length !== after.length) return;
  after.forEach((node, place) => {
    before[place].dataset.figure = node.dataset.figure;
    node.replaceWith(before[place]);
  });
}
