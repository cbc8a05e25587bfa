// The page /dash: what is asked for (it stands in the address), and when what is asked again.
//
//   dash-now.js       GPUs, queue, running requests and models, from the router's own /status
//   dash-unload.js    what is asked before models are unloaded
//   dash-past.js      tiles and figures, from the dashboard's process
//   dash-requests.js  the history of requests, and crashes
import { get } from "./lib/api.js";
import { el, setClass, setText } from "./lib/dom.js";
import { calm, listen } from "./lib/live.js";
import { Now } from "./dash-now.js";
import { Past } from "./dash-past.js";
import { Requests } from "./dash-requests.js";

const $ = (id) => document.getElementById(id);
const DEFAULT_RANGE = $("ranges").dataset.default;
const SECONDS = { m: 60, h: 3600, d: 86400 };

// --- what is asked for ------------------------------------------------------------------------------------------------

const asked = { range: DEFAULT_RANGE, since: "", until: "", model: "", client: "", outcome: "", page: 1 };

function readAddress() {
  const given = new URLSearchParams(location.search);
  asked.range = given.get("range") || DEFAULT_RANGE;
  asked.since = given.get("since") || "";
  asked.until = given.get("until") || "";
  if (asked.since) asked.range = "custom";
  for (const name of ["model", "client", "outcome"]) asked[name] = given.get(name) || "";
  asked.page = Math.max(1, Number.parseInt(given.get("page") || "1", 10) || 1);
}

function writeAddress() {
  const told = new URLSearchParams();
  if (asked.range === "custom") {
    told.set("since", asked.since);
    told.set("until", asked.until);
  } else if (asked.range !== DEFAULT_RANGE) told.set("range", asked.range);
  for (const name of ["model", "client", "outcome"]) if (asked[name]) told.set(name, asked[name]);
  if (asked.page > 1) told.set("page", asked.page);
  const query = told.toString();
  const address = location.pathname + (query ? `?${query}` : "");
  if (address !== location.pathname + location.search) history.pushState(null, "", address);
}

/** The range as the dashboard's process wants it. */
function range() {
  const told = asked.range === "custom" ? { since: asked.since, until: asked.until } : { since: asked.range };
  return asked.model ? { ...told, model: asked.model } : told;
}

function spanS() {
  if (asked.range === "custom") return Number(asked.until) - Number(asked.since);
  return Number.parseFloat(asked.range) * SECONDS[asked.range.at(-1)];
}

function change(given) {
  Object.assign(asked, { page: 1 }, given);
  writeAddress();
  showAsked();
  refreshPast({ now: true });
}

function showAsked() {
  for (const button of $("ranges").children) button.setAttribute("aria-pressed", button.dataset.range === asked.range);
  $("custom").hidden = asked.range !== "custom";
  if (asked.range === "custom") {
    $("from").value = localInput(Number(asked.since) * 1000);
    $("to").value = localInput(Number(asked.until) * 1000);
  }
  for (const name of ["model", "client", "outcome"]) {
    const select = $(name);
    if (asked[name] && ![...select.options].some((option) => option.value === asked[name])) {
      select.append(el("option", { value: asked[name] }, asked[name]));
    }
    select.value = asked[name];
  }
}

/** What a datetime-local input takes. */
function localInput(ms) {
  return new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function custom(sinceMs, untilMs) {
  change({ range: "custom", since: (sinceMs / 1000).toFixed(0), until: (untilMs / 1000).toFixed(0) });
}

$("ranges").addEventListener("click", (event) => {
  const wanted = event.target.dataset.range;
  if (wanted === "custom") custom(Date.now() - spanS() * 1000, Date.now());
  else if (wanted) change({ range: wanted, since: "", until: "" });
});
$("custom").addEventListener("submit", (event) => {
  event.preventDefault();
  const [from, to] = [Date.parse($("from").value), Date.parse($("to").value)];
  const problem = from < to ? "" : "From must be before until.";
  setText($("custom-problem"), problem);
  if (!problem) custom(from, to);
});
for (const name of ["model", "client", "outcome"]) {
  $(name).addEventListener("change", (event) => change({ [name]: event.target.value }));
}
window.addEventListener("popstate", () => {
  readAddress();
  showAsked();
  refreshPast({ now: true });
});

// --- the parts of the page ---------------------------------------------------------------------------------------------

let hues = {};
const now = new Now({ hueOf: (model) => hues[model], changed: () => refreshNow({ now: true }) });
const past = new Past({
  plotly: new URL($("past").dataset.plotly, location).href,
  hueOf: (model) => hues[model],
  onRange: (sinceMs, untilMs) => untilMs - sinceMs >= 2000 && custom(sinceMs, untilMs),
});
const requests = new Requests({
  hueOf: (model) => hues[model],
  onPage: (page) => change({ page }),
  onClient: (client) => change({ client }),
});

async function refreshModels() {
  const told = await get("dash/api/models").catch(() => null);
  if (!told) return;
  hues = told.hues;
  const select = $("model");
  if (select.options.length - 1 < told.models.length) {
    select.replaceChildren(select.options[0], ...told.models.map((model) => el("option", { value: model }, model)));
    select.value = asked.model;
  }
}

// --- when --------------------------------------------------------------------------------------------------------------

const POLL_MS = 2000;
const SAMPLE_MS = 5000;
const SLIDE_MS = 15_000;
/** Tables that numbers and lists are made of. Samples of GPUs, which come every second, are not among them. */
const LISTED = new Set(["requests", "swaps", "crashes", "replicas"]);
let live = false;

const refreshNow = calm(() => now.refresh(), () => 500);

const refreshLists = calm(async () => {
  const query = range();
  const filters = { ...query, client: asked.client, outcome: asked.outcome, page: asked.page };
  await Promise.all([past.tiles(query), requests.refresh(filters)]);
}, () => 2000);

// A figure of a month does not change in a second.
const refreshFigures = calm(() => past.figures(range()), () => Math.min(30_000, Math.max(2000, spanS() * 5)));

function refreshPast(when) {
  refreshLists(when);
  refreshFigures(when);
}

function isOver() {
  return asked.range === "custom" && Number(asked.until) * 1000 < Date.now();
}

const LIVE = { live: ["ok", "Live"], lost: ["bad", "Connection lost"], paused: ["", "Paused"] };

readAddress();
showAsked();
refreshNow({ now: true });
// Words before figures: what draws them is large.
await refreshModels();
await refreshLists({ now: true });
refreshFigures({ now: true });
listen({
  changed: (tables) => {
    refreshNow();
    if (!tables || tables.includes("model_configs")) refreshModels();
    if (isOver()) return;
    if (!tables || tables.some((table) => LISTED.has(table))) refreshLists();
    refreshFigures();
  },
  state: (state) => {
    live = state === "live";
    setClass($("live").firstElementChild, `dot ${LIVE[state][0]}`);
    setText($("live-text"), LIVE[state][1]);
  },
});

function every(ms, run) {
  setInterval(() => document.hidden || run(), ms);
}

every(1000, () => now.tick());
every(POLL_MS, () => live || refreshNow());
every(SAMPLE_MS, () => {
  refreshNow();
  // Figures move on with the time, even where nothing happens.
  if (!isOver()) refreshFigures();
  if (!isOver() && !live) refreshLists();
});
every(SLIDE_MS, () => isOver() || refreshLists());
