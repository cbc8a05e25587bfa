// The what-if page: starts a job, shows how far it is, and its result. The job itself lives in the dashboard's process.
import { Failed, post, root } from "./lib/api.js";
import { el } from "./lib/dom.js";
import { drawAll } from "./lib/embedded.js";
import { Latest } from "./lib/latest.js";
import { keepMoments } from "./lib/moments.js";
import { toast } from "./lib/toast.js";

const RETRY_MS = 2000;

const form = document.getElementById("whatif");
const place = document.getElementById("job");
let kind = "simulate";
let listening = null;
/** The job that was begun with what stands in the form now. */
let begun = "";

// --- the form -------------------------------------------------------------------------------------------------------

function choose(chosen) {
  kind = chosen;
  for (const button of form.querySelectorAll("[data-kind]")) {
    button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
  }
  for (const text of form.querySelectorAll(".explain")) text.hidden = text.dataset.for !== kind;
  for (const input of form.querySelectorAll("[data-setting]")) {
    input.placeholder = kind === "tune" ? `for example ${input.dataset.example}` : "as it was";
  }
}

for (const button of form.querySelectorAll("[data-kind]")) {
  button.addEventListener("click", () => choose(button.dataset.kind));
}

form.elements.range.addEventListener("change", () => {
  const custom = form.elements.range.value === "custom";
  for (const field of form.querySelectorAll(".custom")) field.hidden = !custom;
});

/** A moment that was chosen in the reader's own time, as seconds since 1970. */
function moment(input) {
  return input.value ? String(Math.round(new Date(input.value).getTime() / 1000)) : "";
}

function asked() {
  const settings = {};
  for (const input of form.querySelectorAll("[data-setting]")) {
    if (input.value.trim()) settings[input.name] = input.value;
  }
  for (const line of form.elements.others.value.split("\n")) {
    if (!line.trim()) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Failed(0, `"${line.trim()}": expected KEY=VALUE, such as replicas.MODEL=2`, "others");
    settings[line.slice(0, at).trim()] = line.slice(at + 1);
  }
  const range = form.elements.range.value;
  const custom = range === "custom";
  return {
    kind,
    settings,
    since: custom ? moment(form.elements.since) : range,
    until: custom ? moment(form.elements.until) : "",
  };
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("[type=submit]");
  button.setAttribute("aria-busy", "true");
  forgive();
  try {
    begun = String((await post("dash/api/whatif", asked())).job);
    await renew();
    place.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (!blame(error.param, error.message)) toast(error.message, "bad");
  } finally {
    button.removeAttribute("aria-busy");
  }
});

/** Says at its field what is wrong with a setting; false where there is no such field. */
function blame(param, text) {
  const field = fieldOf(param);
  if (!field) return false;
  field.closest(".field").append(el("span", { className: "problem", id: "problem", role: "alert" }, text));
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", "problem");
  field.focus();
  return true;
}

function fieldOf(param) {
  if (!param) return null;
  if (param !== "since" && param !== "until") return form.elements[param] ?? form.elements.others;
  return form.elements.range.value === "custom" ? form.elements[param] : form.elements.range;
}

function forgive() {
  document.getElementById("problem")?.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}

form.addEventListener("input", (event) => event.target.hasAttribute("aria-invalid") && forgive());

// --- the job --------------------------------------------------------------------------------------------------------

const renewals = new Latest();

async function renew() {
  const turn = renewals.begin();
  let text;
  try {
    const response = await fetch(`${root}dash/whatif?part=1`, { credentials: "same-origin", signal: turn.signal });
    if (!response.ok) return;
    text = await response.text();
  } catch {
    // The stream of how far it is comes back with the router, and says what there is.
    return;
  }
  if (turn.isOver()) return;
  const made = new DOMParser().parseFromString(text, "text/html");
  place.replaceChildren(...made.body.children);
  arrive();
}

function arrive() {
  keepMoments(place);
  drawAll(place);
  place.querySelector("#cancel")?.addEventListener("click", cancel);
  const { job, state, param } = place.querySelector(".story").dataset;
  if (state === "running") listen();
  else stopListening();
  if (state === "failed" && job === begun) {
    begun = "";
    blame(param, place.querySelector("#error-text").textContent);
  }
}

async function cancel(event) {
  event.target.setAttribute("aria-busy", "true");
  try {
    await post("dash/api/whatif/cancel");
  } catch (error) {
    // It may have come to its end just now.
    if (error.status !== 404) toast(error.message, "bad");
  }
  await renew();
}

function listen() {
  if (listening) return;
  listening = new EventSource(`${root}dash/api/whatif/stream`);
  listening.addEventListener("job", (event) => show(JSON.parse(event.data)));
  listening.addEventListener("error", () => {
    // A browser comes back by itself after a connection that broke, and not after an answer that says no.
    if (listening?.readyState !== EventSource.CLOSED) return;
    stopListening();
    setTimeout(() => isRunning() && listen(), RETRY_MS);
  });
}

function isRunning() {
  return place.querySelector(".story").dataset.state === "running";
}

function stopListening() {
  listening?.close();
  listening = null;
}

function show(told) {
  const live = place.querySelector(".story");
  if (String(told.job) !== live.dataset.job || told.state !== live.dataset.state) {
    renew();
    return;
  }
  const stage = place.querySelector("#stage");
  const meter = place.querySelector("#meter");
  if (!stage || !meter) return;
  const share = told.total ? told.done / told.total : null;
  const words = told.stage.charAt(0).toUpperCase() + told.stage.slice(1);
  const counted = told.total > 1 ? `: ${told.done} of ${told.total}` : share !== null ? `: ${Math.round(100 * share)} %` : "";
  stage.textContent = `${words}${counted} …`;
  meter.classList.toggle("unknown", share === null);
  meter.firstElementChild.style.transform = `scaleX(${share ?? 1})`;
}

arrive();
