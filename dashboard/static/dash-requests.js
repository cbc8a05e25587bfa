// The history of requests, page by page, and the crashes of the same time.
import { get, root } from "./lib/api.js";
import { el, keyed, setAttribute, setClass, setText, show } from "./lib/dom.js";
import { duration, moment, momentInFull, number } from "./lib/format.js";
import { Latest } from "./lib/latest.js";

const $ = (id) => document.getElementById(id);

const OUTCOMES = {
  ok: ["ok", "Answered"],
  error: ["bad", "Error"],
  failed: ["bad", "Failed"],
  rejected: ["bad", "Refused"],
  cancelled: ["warn", "Cancelled"],
  lost: ["bad", "Lost"],
};
const STAGES = { queued: ["warn", "Waiting"], running: ["info", "Running"], ended: ["", "Ended"] };
const KINDS = {
  crash: ["bad", "Crash"],
  load_failed: ["bad", "Load failed"],
  stall: ["warn", "Fell silent"],
};

export class Requests {
  #hueOf;
  #onClient;
  #onPage;
  #asked = new Latest();
  #query = "";
  #clientsOf = "";

  constructor({ hueOf, onPage, onClient }) {
    this.#hueOf = hueOf;
    this.#onClient = onClient;
    this.#onPage = onPage;
    this.page = 1;
    $("newer").addEventListener("click", () => onPage(this.page - 1));
    $("older").addEventListener("click", () => onPage(this.page + 1));
    for (const body of [$("requests"), $("crashes")]) body.addEventListener("click", follow);
  }

  async refresh(filters) {
    const turn = this.#asked.begin();
    const { client, outcome, page, ...range } = filters;
    await Promise.all([
      this.#list(filters, turn),
      this.#crashes(new URLSearchParams(range), turn),
      this.#clients(new URLSearchParams(range), turn),
    ]);
  }

  async #list(filters, turn) {
    const query = String(new URLSearchParams(filters));
    let told;
    try {
      told = await get(`dash/api/panels/requests?${query}`, turn);
    } catch (error) {
      if (!turn.isOver()) said("requests-state", "error", `The list could not be fetched: ${error.message}.`);
      return;
    }
    if (turn.isOver()) return;
    // Only what comes by itself is marked as new, not what was asked for.
    const isUpdate = this.#query === query;
    this.#query = query;
    this.page = told.page;
    const pages = Math.max(1, Math.ceil(told.total / told.limit));
    if (told.page > pages) {
      // There were more when it was asked for, or somebody wrote a number into the address.
      this.#onPage(pages);
      return;
    }
    show($("requests-wrap"), told.rows.length > 0);
    said("requests-state", told.rows.length ? "" : "empty", filters.client || filters.outcome || filters.model ? "No request fits these filters." : "No requests in this time.");
    setText($("requests-total"), told.total ? `${number(told.total)} in all` : "");
    show($("pager"), pages > 1 || told.page > 1);
    $("newer").disabled = told.page <= 1;
    $("older").disabled = told.page >= pages;
    setText($("pager-text"), `Page ${number(told.page)} of ${number(pages)}`);
    keyed($("requests"), told.rows, (row) => row.rid, () => requestRow(isUpdate), (node, row) => this.#update(node, row));
  }

  #update(node, row) {
    const [time, model, client, wait, ttft, prompt, cached, generated, speed, outcome] = node.children;
    const address = `${root}dash/requests/${row.rid}`;
    setAttribute(node, "data-href", address);
    const link = time.firstElementChild;
    setAttribute(link, "href", address);
    setText(link, moment(row.arrived_us));
    setAttribute(link, "title", `Request ${row.rid}, ${momentInFull(row.arrived_us)}`);
    this.#name(model.firstElementChild, row.model, row.asked);
    const who = client.firstElementChild;
    const name = row.key || row.client;
    setText(who, row.key || (row.client ? row.client.slice(0, 8) : "–"));
    setAttribute(who, "title", name ? `Only the requests of ${name}` : null);
    who.onclick = name
      ? (event) => {
          event.stopPropagation();
          this.#onClient(name);
        }
      : null;
    setText(wait, duration(row.wait_us));
    setText(ttft, duration(row.ttft_us));
    setText(prompt, number(row.prompt_tokens));
    setText(cached, number(row.cached_tokens));
    setClass(cached, row.cached_tokens ? "num good" : "num");
    setText(generated, number(row.completion_tokens ?? (row.stage === "running" ? null : row.frames)));
    setText(speed, row.tokens_per_s !== null && row.tokens_per_s < 100 ? row.tokens_per_s.toFixed(1) : number(row.tokens_per_s));
    for (const cell of node.querySelectorAll(".num")) setAttribute(cell, "data-none", cell.textContent === "–");
    const [kind, text] = OUTCOMES[row.outcome] ?? STAGES[row.stage] ?? ["", row.stage];
    setClass(outcome.firstElementChild, `badge ${kind}`);
    setText(outcome.firstElementChild, text);
    setAttribute(outcome, "title", [row.status, row.code, row.reason, row.cancelled_by && `by ${row.cancelled_by}`].filter(Boolean).join(", ") || null);
  }

  #name(node, model, asked) {
    setText(node, model);
    setAttribute(node, "title", asked ? `${model}, asked for as ${asked}` : model);
    setAttribute(node, "data-hue", this.#hueOf(model) ?? null);
  }

  async #crashes(range, turn) {
    let rows;
    try {
      ({ rows } = await get(`dash/api/panels/crashes?${range}`, turn));
    } catch (error) {
      if (!turn.isOver()) said("crashes-state", "error", `The list could not be fetched: ${error.message}.`);
      return;
    }
    if (turn.isOver()) return;
    show($("crashes-wrap"), rows.length > 0);
    said("crashes-state", rows.length ? "" : "empty", "Nothing crashed in this time.");
    keyed($("crashes"), rows, (row) => row.seq, crashRow, (node, row) => {
      const [time, model, what, reason, lived] = node.children;
      const address = `${root}dash/crashes/${row.seq}`;
      setAttribute(node, "data-href", address);
      setAttribute(time.firstElementChild, "href", address);
      setText(time.firstElementChild, moment(row.at_us));
      setAttribute(time.firstElementChild, "title", momentInFull(row.at_us));
      this.#name(model.firstElementChild, row.model ?? row.replica);
      const [kind, text] = KINDS[row.kind] ?? ["", row.kind];
      setClass(what.firstElementChild, `badge ${kind}`);
      setText(what.firstElementChild, text);
      setText(reason, row.reason || row.last_lines.at(-1) || row.cause || "–");
      setText(lived, duration(row.lived_us));
    });
  }

  /** Who can be filtered for: asked once for each range. */
  async #clients(range, turn) {
    const query = String(range);
    if (this.#clientsOf === query) return;
    const told = await get(`dash/api/panels/clients?${query}`, turn).catch(() => null);
    if (!told) return;
    this.#clientsOf = query;
    const select = $("client");
    const chosen = select.value;
    const options = told.rows.map((row) => el("option", { value: row.who }, row.is_key ? row.who : `client ${row.who.slice(0, 8)}`));
    if (chosen && !told.rows.some((row) => row.who === chosen)) options.push(el("option", { value: chosen }, chosen));
    select.replaceChildren(select.options[0], ...options);
    select.value = chosen;
  }
}

function requestRow(isNew) {
  const cells = [
    el("td", { className: "time" }, el("a")),
    el("td", {}, el("span", { className: "name chip" })),
    el("td", {}, el("button", { type: "button", className: "plain mono" })),
    ...["wait", "TTFT", "prompt", "cached", "made", "tokens/s"].map((label) => el("td", { className: "num", dataset: { label } })),
    el("td", {}, el("span", { className: "badge" })),
  ];
  const row = el("tr", {}, cells);
  if (isNew && matchMedia("(prefers-reduced-motion: no-preference)").matches) {
    row.animate([{ background: "var(--accent-soft)" }, { background: "transparent" }], { duration: 1500, easing: "ease-out" });
  }
  return row;
}

function crashRow() {
  return el(
    "tr",
    {},
    el("td", { className: "time" }, el("a")),
    el("td", {}, el("span", { className: "name chip" })),
    el("td", {}, el("span", { className: "badge" })),
    el("td", { className: "reason" }),
    el("td", { className: "num optional" }),
  );
}

function said(id, kind, text) {
  show($(id), Boolean(kind));
  setClass($(id), kind);
  setText($(id), kind ? text : "");
}

/** A click anywhere on a row follows its link, unless something is being selected. */
function follow(event) {
  const row = event.target.closest("tr[data-href]");
  if (!row || event.target.closest("a, button") || String(getSelection())) return;
  location.assign(row.dataset.href);
}
