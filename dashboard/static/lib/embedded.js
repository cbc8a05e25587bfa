// Figures that came in a page: <div class="figure" data-plotly="URL" data-figure="JSON">.
import { Chart } from "./charts.js";

const charts = new WeakMap();
const drawn = new WeakMap();
const figures = (within) => [...within.querySelectorAll(".figure[data-figure]")];

/** Draws those that are not drawn as they are. */
export function drawAll(within) {
  for (const node of figures(within)) {
    if (drawn.get(node) === node.dataset.figure) continue;
    if (!charts.has(node)) charts.set(node, new Chart(node, node.dataset.plotly));
    drawn.set(node, node.dataset.figure);
    charts.get(node).draw(JSON.parse(node.dataset.figure));
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
