// What the router does at this moment, from its /status: GPUs, queue, running requests, models; and what can be done.
import { get, post, root } from "./lib/api.js";
import { el, keyed, setAttribute, setClass, setText, show } from "./lib/dom.js";
import { count, duration, mib, number, percent, ticking } from "./lib/format.js";
import { Latest } from "./lib/latest.js";
import { confirm, toast } from "./lib/toast.js";
import { waitsFor } from "./lib/waits.js";
import { NOW, SOON, askHow, isInUse, wordsAfter } from "./dash-unload.js";

const $ = (id) => document.getElementById(id);
const LISTED = 100;
const SEARCH_FROM = 9;

const PHASES = {
  absent: ["", "Not loaded"],
  loading: ["info", "Loading"],
  ready: ["ok", "Loaded"],
  draining: ["warn", "Finishing its work"],
  stopping: ["warn", "Being stopped"],
};
const GPU_STATUS = {
  idle: ["", "Idle"],
  serving: ["ok", "Serving"],
  swapping: ["info", "Swapping"],
  starting: ["info", "Starting"],
  stopping: ["warn", "Stopping"],
  inactive: ["", "Stopped"],
  error: ["bad", "Error"],
};
const ROUTER_STATUS = {
  active: ["ok", "Running"],
  starting: ["info", "Starting"],
  stopping: ["warn", "Stopping"],
  inactive: ["warn", "Stopped: new requests are refused"],
  error: ["bad", "Error"],
};
const SWAP_PHASES = {
  draining: "waits for running work",
  saving: "saves prompt caches",
  stopping: "stops what must leave",
  starting: "loads",
  restoring: "brings prompt caches back",
};

export class Now {
  #hueOf;
  #changed;
  #status = null;
  #asked = new Latest();
  #busy = new Set();

  /** `changed()` is called after something was done. */
  constructor({ hueOf, changed }) {
    this.#hueOf = hueOf;
    this.#changed = changed;
    $("models-search").addEventListener("input", () => this.#showModels());
    $("unload-all").addEventListener("click", () => this.#do($("unload-all"), "unload-all", () => this.#unloadAll()));
  }

  async refresh() {
    const turn = this.#asked.begin();
    let status;
    try {
      status = await get(`status?limit=${LISTED}`, turn);
    } catch (error) {
      if (turn.isOver()) return;
      notices([{ kind: "bad", text: `What the router does now is not known: ${error.message}.` }]);
      if (!this.#status) notKnown();
      return;
    }
    // Of before something was done, which has been asked for anew since.
    if (turn.isOver()) return;
    this.#status = status;
    notices(this.#problems());
    this.#showHead();
    this.#showGpus();
    this.#showWaiting();
    this.#showRunning();
    this.#showModels();
  }

  /** Times that pass while nothing is asked. */
  tick() {
    for (const node of document.querySelectorAll("[data-since]")) {
      setText(node, ticking((performance.now() - Number(node.dataset.since)) * 1000));
    }
  }

  // --- what is shown ---------------------------------------------------------------------------------------------------

  /** What its owner should know, the worst first. */
  #problems() {
    const { log_available, config, warnings } = this.#status;
    const found = [];
    if (!log_available) found.push({ kind: "bad", text: "The event log cannot be written: running answers end, new requests get 503." });
    if (config?.problems.length) {
      const text = `The last reload was refused, so the configuration before it stays in force: ${config.problems.join("; ")}`;
      found.push({ kind: "bad", text });
    }
    if (config?.needs_restart.length) {
      found.push({ kind: "warn", text: `Changed, but in force only after a restart: ${config.needs_restart.join(", ")}` });
    }
    return [...found, ...warnings.map((text) => ({ kind: "warn", text }))];
  }

  #showHead() {
    const { status, version, uptime_us, profile } = this.#status;
    badge($("router-status"), ROUTER_STATUS[status] ?? ["", status]);
    show($("router-status"), true);
    setText($("router-facts"), [`version ${version}`, `up ${ticking(uptime_us)}`, profile && `profile ${profile}`].filter(Boolean).join(" · "));
  }

  #showGpus() {
    for (const left of $("gpus").querySelectorAll(".waiting-panel")) left.remove();
    keyed($("gpus"), this.#status.gpus, (gpu) => gpu.index, gpuCard, (card, gpu) => this.#updateGpu(card, gpu));
  }

  #updateGpu(card, gpu) {
    const part = parts(card);
    setText(part.title, `GPU ${gpu.index}`);
    setText(part.name, gpu.name.replace(/^NVIDIA (GeForce )?/, ""));
    setAttribute(part.name, "title", gpu.name);
    badge(part.status, gpu.out_of_service ? ["warn", "Out of service"] : (GPU_STATUS[gpu.status] ?? ["", gpu.status]));
    const known = gpu.utilisation_percent !== null || gpu.used_mib !== null;
    show(part.figures, known);
    if (known) {
      meter(part.busy, (gpu.utilisation_percent ?? 0) / 100);
      setText(part.busyText, gpu.utilisation_percent === null ? "–" : `${gpu.utilisation_percent} %`);
      meter(part.memory, gpu.total_mib ? gpu.used_mib / gpu.total_mib : 0);
      setText(part.memoryText, memoryOf(gpu));
      const extra = [];
      if (gpu.temperature_c !== null) extra.push(`${gpu.temperature_c} °C`);
      if (gpu.power_mw !== null) extra.push(`${number(Math.round(gpu.power_mw / 1000))} W`);
      setText(part.extra, extra.join(" · "));
    }
    const models = new Map(this.#status.models.map((model) => [model.name, model]));
    keyed(part.residents, gpu.residents, (resident) => resident.model, residentRow, (row, resident) => {
      const [name, slots, phase] = row.children;
      this.#name(name, resident.model);
      const model = models.get(resident.model);
      const memory = resident.vram_mib === null ? "" : ` · ${mib(resident.vram_mib)}`;
      setText(slots, resident.phase === "ready" && model ? `${model.in_flight} of ${count(model.slots, "slot")}${memory}` : "");
      const told = PHASES[resident.phase] ?? ["", resident.phase];
      badge(phase, resident.phase === "loading" ? ["info", progress(model)] : told);
      show(phase, resident.phase !== "ready");
    });
    show(part.nothing, gpu.residents.length === 0);
    const swap = this.#status.swaps.find((each) => each.gpus.includes(gpu.index));
    show(part.swap, Boolean(swap));
    if (swap) {
      const to = swap.target || "nothing";
      const from = swap.victims.length ? `${swap.victims.join(", ")} → ${to}` : `→ ${to}`;
      setText(part.swap, `Swap ${swap.swap}: ${from}, ${SWAP_PHASES[swap.phase] ?? swap.phase}`);
      setAttribute(part.swap, "title", part.swap.textContent);
      setAttribute(part.swap, "href", `${root}dash/swaps/${swap.swap}`);
    }
  }

  #showWaiting() {
    const { queue, queued } = this.#status;
    show($("waiting-wrap"), queued > 0);
    show($("waiting-empty"), queued === 0);
    setText($("waiting-empty"), "Nothing is waiting.");
    show($("waiting-count"), queued > 0);
    setText($("waiting-count"), number(queued));
    setText($("waiting-hint"), queued > queue.length ? `the first ${queue.length} are shown` : "");
    keyed($("waiting"), queue, (wait) => wait.rid, () => this.#row(6), (row, wait) => {
      const [position, model, why, waited, eta, act] = row.children;
      position.className = waited.className = eta.className = "num";
      waited.dataset.label = "waited";
      eta.dataset.label = "starts in";
      setText(position, wait.position);
      this.#name(only(model, "span"), wait.model);
      setText(only(why, "span"), wait.kind === "wish" ? `Load by hand. ${waitsFor(wait.blocked_by)}` : waitsFor(wait.blocked_by));
      setClass(why, "why");
      since(waited, wait.waited_us);
      setText(eta, wait.eta_us === null ? "–" : wait.eta_us < 1e6 ? "now" : `~${ticking(wait.eta_us)}`);
      this.#cancel(act, wait, "waits");
    });
  }

  #showRunning() {
    const running = this.#status.in_flight;
    show($("running-wrap"), running.length > 0);
    show($("running-empty"), running.length === 0);
    setText($("running-empty"), "Nothing is running.");
    show($("running-count"), running.length > 0);
    setText($("running-count"), number(running.length));
    keyed($("running"), running.slice(0, LISTED), (each) => each.rid, () => this.#row(5), (row, each) => {
      const [request, model, doing, taken, act] = row.children;
      const link = only(request, "a");
      setAttribute(link, "href", `${root}dash/requests/${each.rid}`);
      setText(link, each.rid);
      setAttribute(request, "title", [each.route, each.key && `key ${each.key}`].filter(Boolean).join(", "));
      this.#name(only(model, "span"), each.model);
      setText(doing, doingOf(each));
      taken.className = "num";
      taken.dataset.label = "for";
      since(taken, each.running_us ?? 0);
      this.#cancel(act, each, "runs");
    });
  }

  #showModels() {
    if (!this.#status) return;
    const { models } = this.#status;
    const wanted = $("models-search").value.trim().toLowerCase();
    const found = models.filter((model) => model.name.toLowerCase().includes(wanted));
    show($("models-search"), models.length >= SEARCH_FROM);
    show($("models-wrap"), found.length > 0);
    show($("models-empty"), found.length === 0);
    setText($("models-empty"), wanted ? "No model has this in its name." : "No model is configured.");
    const loaded = models.filter((model) => model.phase !== "absent").length;
    // It is not taken away from under the fingers of who has just used it.
    show($("unload-all"), loaded > 0 || document.activeElement === $("unload-all"));
    $("unload-all").disabled = loaded === 0;
    setText($("models-hint"), [`${loaded} of ${models.length} loaded`, caches(this.#status.prompt_caches)].filter(Boolean).join(" · "));
    // Loaded ones first; but nothing moves under the pointer.
    const body = $("models");
    if (body.matches(":hover, :focus-within") && body.children.length === found.length) {
      const place = new Map([...body.children].map((row, index) => [row.dataset.key, index]));
      found.sort((a, b) => (place.get(a.name) ?? 0) - (place.get(b.name) ?? 0));
    } else found.sort((a, b) => rank(a) - rank(b));
    keyed(body, found, (model) => model.name, () => this.#row(7), (row, model) => {
      const [name, state, gpus, slots, waiting, idle, act] = row.children;
      slots.className = waiting.className = "num";
      gpus.dataset.label = model.gpus.length > 1 ? "GPUs" : "GPU";
      slots.dataset.label = "slots";
      waiting.dataset.label = "waiting";
      idle.className = "num optional";
      this.#name(only(name, "span"), model.name);
      badge(only(state, "span"), stateOf(model));
      setAttribute(state, "title", model.failure?.reason || model.cooling_down?.reason || null);
      setText(gpus, model.gpus.join(", ") || "–");
      setText(slots, model.slots ? `${model.in_flight} of ${model.slots}` : "–");
      setText(waiting, model.queued ? number(model.queued) : "–");
      for (const cell of [gpus, slots, waiting]) setAttribute(cell, "data-none", cell.textContent === "–");
      setText(idle, ticking(model.idle_us));
      this.#loadOrUnload(act, model);
    });
  }

  #row(cells) {
    return el("tr", {}, Array.from({ length: cells }, () => el("td")));
  }

  #name(node, model) {
    setClass(node, "name chip");
    setText(node, model);
    setAttribute(node, "title", model);
    const hue = this.#hueOf(model);
    setAttribute(node, "data-hue", hue ?? null);
  }

  // --- what can be done ------------------------------------------------------------------------------------------------

  #button(cell, key, text, className, run) {
    cell.className = "act";
    const button = only(cell, "button");
    setAttribute(button, "type", "button");
    setClass(button, `button small ${className}`);
    setText(button, text);
    setAttribute(button, "aria-busy", this.#busy.has(key) ? "true" : null);
    button.onclick = (event) => {
      event.stopPropagation();
      this.#do(button, key, run);
    };
    return button;
  }

  /** Does it once at a time, says what went wrong, and looks at what has become of it. */
  async #do(button, key, run) {
    if (this.#busy.has(key)) return;
    this.#busy.add(key);
    setAttribute(button, "aria-busy", "true");
    try {
      await run();
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      this.#busy.delete(key);
      setAttribute(button, "aria-busy", null);
      this.#changed();
    }
  }

  #cancel(cell, request, state) {
    const button = this.#button(cell, `cancel:${request.rid}`, "Cancel", "quiet", async () => {
      const sure = await confirm(
        `Cancel request ${request.rid}?`,
        `It is for ${request.model} and ${state} now. Its client gets an error and no more of the answer.`,
        "Cancel the request",
      );
      if (!sure) return;
      await post(`router/inflight/${request.rid}/cancel`);
      toast(`Request ${request.rid} is cancelled.`);
    });
    setAttribute(button, "aria-label", `Cancel request ${request.rid}`);
  }

  #loadOrUnload(cell, model) {
    const isThere = model.phase !== "absent";
    const button = this.#button(cell, `model:${model.name}`, isThere ? "Unload" : "Load", "", () =>
      isThere ? this.#unload(model) : this.#load(model),
    );
    button.disabled = model.phase === "stopping";
    setAttribute(button, "aria-label", `${isThere ? "Unload" : "Load"} ${model.name}`);
  }

  async #load(model) {
    const inTheWay = this.#status.gpus
      .filter((gpu) => model.gpus.includes(gpu.index))
      .flatMap((gpu) => gpu.residents.map((resident) => resident.model));
    if (inTheWay.length) {
      const others = [...new Set(inTheWay)].join(", ");
      const text = `On its GPUs there is: ${others}. What there is no room for leaves, once its running work is done.`;
      if (!(await confirm(`Load ${model.name}?`, text, "Load it"))) return;
    }
    const told = await post("models/load", { model: model.name });
    toast(told.outcome === "pending" ? `${model.name} loads when its turn comes.` : `${model.name} is loaded.`);
  }

  /** One that nobody uses leaves at once; else it is asked how. */
  async #unload(model) {
    const how = isInUse(model) ? await askHow(`Unload ${model.name}?`, [model]) : SOON;
    if (!how) return;
    const told = await post("models/unload", { model: model.name, force: how === NOW });
    toast(wordsAfter(model.name, how, told.outcome));
  }

  async #unloadAll() {
    const how = await askHow("Unload every model?", this.#status.models.filter((model) => model.phase !== "absent"));
    if (!how) return;
    const told = await post(`router/drain?force=${how === NOW}`);
    toast(wordsAfter("Every model", how, told.outcome));
  }
}

// --- pieces ------------------------------------------------------------------------------------------------------------

function gpuCard() {
  const line = (label, text, bar) =>
    el("div", { className: "gpu-figure" }, el("div", { className: "gpu-line" }, el("span", { className: "muted" }, label), el("span", { dataset: { part: text } })), el("div", { className: "meter", dataset: { part: bar } }, el("i")));
  return el(
    "article",
    { className: "panel gpu" },
    el(
      "div",
      { className: "panel-head" },
      el("h2", { dataset: { part: "title" } }),
      el("span", { className: "hint gpu-name", dataset: { part: "name" } }),
      el("span", { className: "spacer" }),
      el("span", { className: "badge", dataset: { part: "status" } }),
    ),
    el(
      "div",
      { className: "panel-body" },
      el("div", { className: "gpu-figures", dataset: { part: "figures" } }, line("Busy", "busyText", "busy"), line("Memory", "memoryText", "memory"), el("div", { className: "small muted gpu-extra", dataset: { part: "extra" } })),
      el("ul", { className: "residents", dataset: { part: "residents" } }),
      el("div", { className: "muted small", dataset: { part: "nothing" } }, "No model is loaded."),
      el("a", { className: "swap-line", dataset: { part: "swap" }, hidden: true }),
    ),
  );
}

function residentRow() {
  return el("li", {}, el("span"), el("span", { className: "muted small nowrap" }), el("span", { className: "badge" }));
}

function parts(card) {
  card.parts ??= Object.fromEntries([...card.querySelectorAll("[data-part]")].map((node) => [node.dataset.part, node]));
  return card.parts;
}

/** The one child of a cell, made when it is not there yet. */
function only(cell, tag) {
  if (!cell.firstElementChild) cell.append(el(tag));
  return cell.firstElementChild;
}

function badge(node, [kind, text]) {
  setClass(node, kind ? `badge ${kind}` : "badge");
  setText(node, text);
}

/** Where the router has not answered since the page was opened. */
function notKnown() {
  for (const name of ["waiting", "running", "models"]) setText($(`${name}-empty`), "Not known.");
  for (const each of $("gpus").querySelectorAll(".skeleton")) {
    setClass(each, "muted");
    setText(each, "Not known.");
  }
}

function meter(node, share) {
  node.firstElementChild.style.transform = `scaleX(${Math.min(1, Math.max(0, share))})`;
}

function since(node, us) {
  const at = performance.now() - us / 1000;
  // The same moment is not told anew by a few milliseconds, or seconds would skip.
  if (!node.dataset.since || Math.abs(Number(node.dataset.since) - at) > 400) node.dataset.since = at;
  setText(node, ticking((performance.now() - Number(node.dataset.since)) * 1000));
}

function notices(found) {
  keyed($("notices"), found, (each) => each.text, () => el("div"), (node, each) => {
    setClass(node, `note ${each.kind}`);
    setText(node, each.text);
  });
}

/** Prompt caches that survive swaps, if any are kept. */
function caches(kept) {
  if (!kept?.on) return "";
  const size = mib(kept.bytes / 2 ** 20);
  return `${count(kept.files, "prompt cache")} kept (${size}), used ${count(kept.hits, "time")}, ${duration(kept.saved_us)} of reading spared`;
}

/** Both in the same unit: 8.9 of 24 GiB. */
function memoryOf(gpu) {
  if (gpu.used_mib === null || !gpu.total_mib || gpu.total_mib < 10 * 1024) return `${mib(gpu.used_mib)} of ${mib(gpu.total_mib)}`;
  return `${(gpu.used_mib / 1024).toFixed(1)} of ${mib(gpu.total_mib)}`;
}

function rank(model) {
  const order = ["ready", "draining", "loading", "stopping", "absent"].indexOf(model.phase);
  return order === 4 && model.queued ? 3.5 : order;
}

function progress(model) {
  const at = model?.progress;
  if (!at) return "Loading";
  const stage = { download: "Downloading", evicting: "Waits for room" }[at.current] ?? "Loading";
  return at.value === null || at.value === undefined ? stage : `${stage} ${percent(Math.floor(at.value * 100) / 100)}`;
}

function stateOf(model) {
  if (model.progress) return ["info", progress(model)];
  if (model.cooling_down) return ["bad", "Failed, not tried for now"];
  if (model.failure) return ["bad", "Failed last time"];
  return PHASES[model.phase] ?? ["", model.phase];
}

function doingOf(request) {
  if (request.frames > 0) return count(request.frames, "token");
  if (request.prompt_total) return `reads the prompt, ${percent(request.prompt_processed / request.prompt_total)}`;
  if (request.kind === "metadata") return "answers";
  return request.stream ? "reads the prompt" : "works";
}
