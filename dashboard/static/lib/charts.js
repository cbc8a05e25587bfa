// Draws the figures that the dashboard's process makes. It brings them the page's colours and the reader's own time.

let loading = null;

/** plotly.js, fetched when it is first needed. */
function plotly(url) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("plotly.js could not be fetched"));
    };
    document.head.append(script);
  });
  return loading;
}

const probe = document.createElement("span");
probe.hidden = true;

/** The value of `var(--name)` in the present theme: Plotly takes no variables. */
function colour(name, known) {
  if (!known.has(name)) {
    probe.style.color = "";
    probe.style.color = name;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

function coloured(value, known) {
  if (typeof value === "string") return value.startsWith("var(--") ? colour(value, known) : value;
  if (Array.isArray(value)) return typeof value[0] === "object" && value[0] ? value.map((each) => coloured(each, known)) : value;
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each, known)]));
  }
  return value;
}

/** Plotly shows every time as if it were UTC: the reader's own clock, then, is told as UTC. */
const local = (ms) => (ms === null ? null : ms - new Date(ms).getTimezoneOffset() * 60_000);
const fromLocal = (ms) => ms + new Date(ms).getTimezoneOffset() * 60_000;

function inLocalTime(figure) {
  for (const trace of figure.data) {
    if (trace.base) trace.base = trace.base.map(local);
    else trace.x = trace.x.map(local);
  }
  figure.layout.xaxis.range = figure.layout.xaxis.range.map(local);
}

function dressed(figure) {
  const known = new Map();
  const told = coloured(figure, known);
  if (told.layout.xaxis.type === "date") inLocalTime(told);
  const ground = (name) => colour(name, known);
  told.layout.paper_bgcolor = "rgba(0,0,0,0)";
  told.layout.plot_bgcolor = "rgba(0,0,0,0)";
  told.layout.font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: ground("var(--text-2)") };
  told.layout.hoverlabel = {
    bgcolor: ground("var(--surface)"),
    bordercolor: ground("var(--line-strong)"),
    font: { color: ground("var(--text)"), size: 12.5 },
    align: "left",
    namelength: -1,
  };
  for (const [name, axis] of Object.entries(told.layout)) {
    if (!/^[xy]axis\d*$/.test(name)) continue;
    axis.gridcolor = ground("var(--line)");
    axis.linecolor = ground("var(--line)");
    axis.tickfont = { color: ground("var(--text-3)"), size: 11.5 };
    axis.spikecolor = ground("var(--text-3)");
    axis.spikethickness = 1;
    if (axis.type === "date") axis.tickformatstops = TIMES;
  }
  // A finger scrolls the page; only a mouse draws a range.
  if (matchMedia("(pointer: coarse)").matches) told.layout.dragmode = false;
  return told;
}

const TIMES = [
  { dtickrange: [null, 60_000], value: "%H:%M:%S" },
  { dtickrange: [60_000, 86_400_000], value: "%H:%M\n%-d %b" },
  { dtickrange: [86_400_000, null], value: "%-d %b\n%Y" },
];

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };

/**
 * A place for a figure. `draw(figure)` draws or redraws it in place, and resolves to whether it did: one that a later
 * figure has overtaken is left out. `onRange(since_ms, until_ms)` hears of a range that was drawn with the mouse,
 * `onPoint(point)` of a click.
 */
export class Chart {
  #node;
  #url;
  #figure = null;
  #onRange;
  #onPoint;
  #bound = false;
  #isHeld = false;
  #over = new AbortController();

  constructor(node, url, { onRange, onPoint } = {}) {
    this.#node = node;
    this.#url = url;
    this.#onRange = onRange;
    this.#onPoint = onPoint;
    document.body.append(probe);
    const { signal } = this.#over;
    // What is under the pointer while a range is drawn stays; the figure is brought up to date after that.
    node.addEventListener("pointerdown", () => (this.#isHeld = true), { capture: true, signal });
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => (this.#isHeld = false), { signal });
    document.addEventListener("theme", () => this.#figure && this.draw(this.#figure), { signal });
  }

  async draw(figure) {
    this.#figure = figure;
    const library = await plotly(this.#url);
    // A later figure has overtaken this one while the library came.
    if (this.#figure !== figure || this.#isHeld) return false;
    const told = dressed(structuredClone(figure));
    this.#node.style.minHeight = `${told.layout.height}px`;
    await library.react(this.#node, told.data, told.layout, CONFIG);
    if (!this.#bound) this.#bind();
    return true;
  }

  clear() {
    this.#node.style.minHeight = "";
    this.#figure = null;
    if (this.#bound) window.Plotly.purge(this.#node);
    this.#bound = false;
  }

  /** Its place is no longer on the page. */
  dispose() {
    this.#over.abort();
    this.clear();
  }

  #bind() {
    this.#bound = true;
    this.#node.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      const to = change["xaxis.range[1]"];
      if (from === undefined || !this.#onRange) return;
      const ms = [from, to].map((each) => (typeof each === "number" ? each : Date.parse(`${String(each).replace(" ", "T")}Z`)));
      this.#onRange(...ms.map(fromLocal));
    });
    this.#node.on("plotly_click", (click) => this.#onPoint?.(click.points[0]));
  }
}
