// Figures that came in a page: <div class="figure" data-plotly="URL" data-figure="JSON">.
import { Chart } from "./charts.js";

const charts = new WeakMap();

export function drawAll(within) {
  for (const node of within.querySelectorAll(".figure[data-figure]")) {
    if (charts.has(node)) continue;
    const chart = new Chart(node, node.dataset.plotly);
    charts.set(node, chart);
    chart.draw(JSON.parse(node.dataset.figure));
  }
}
