// A translation as it is made: a stream of a chat completion's chunks, read here, stopped by hanging up.
import { get, root } from "./lib/api.js";
import { el, setText, show } from "./lib/dom.js";
import { count, number } from "./lib/format.js";

const KEPT = "translate";
const FIELDS = ["model", "source", "target", "additionals"];
const $ = (id) => document.getElementById(id);

let running = null;

async function listModels() {
  const kept = read();
  try {
    const { data } = await get("v1/models");
    $("model").replaceChildren(...data.map((model) => el("option", { value: model.id }, model.id)));
    if (data.length === 0) setText($("problem"), "No model is configured.");
  } catch (error) {
    setText($("problem"), `The models are not known: ${error.message}.`);
  }
  for (const field of FIELDS) if (kept[field]) $(field).value = kept[field];
  if (!$("model").value) $("model").selectedIndex = 0;
  showSize();
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

function keep() {
  try {
    localStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(FIELDS.map((field) => [field, $(field).value]))));
  } catch {
    // It is then asked for again next time.
  }
}

function showSize() {
  const size = $("text").value.length;
  setText($("text-size"), size ? count(size, "character") : "");
}

async function translate(event) {
  event?.preventDefault();
  if (running || !$("form").reportValidity()) return;
  keep();
  running = new AbortController();
  setText($("problem"), "");
  setText($("result"), "");
  setText($("state"), "Waiting");
  busy(true);
  let stopped = false;
  try {
    const body = Object.fromEntries(FIELDS.map((field) => [field, $(field).value]));
    const response = await fetch(`${root}translate`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...body, text: $("text").value, stream: true }),
      credentials: "same-origin",
      signal: running.signal,
    });
    if (!response.ok) throw new Error(await reason(response));
    await follow(response.body);
  } catch (error) {
    stopped = error.name === "AbortError";
    if (stopped) setText($("state"), "Stopped");
    else {
      setText($("problem"), error instanceof TypeError ? "The connection to the router broke off." : error.message);
      setText($("state"), "");
    }
  } finally {
    running = null;
    busy(false);
  }
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the answer was ${response.status}`;
  }
}

async function follow(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let done = false;
  for (;;) {
    const { value, done: over } = await reader.read();
    if (over) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) done = take(line) || done;
  }
  if (!done) throw new Error("The answer broke off before its end.");
}

/** One line of the stream; true for the last one. */
function take(line) {
  if (line.startsWith(":")) {
    const place = /queued position=(\d+)/.exec(line);
    if (place) setText($("state"), `Waiting, place ${place[1]}`);
    return false;
  }
  if (!line.startsWith("data:")) return false;
  const data = line.slice(5).trim();
  if (data === "[DONE]") return true;
  const chunk = JSON.parse(data);
  if (chunk.error) throw new Error(chunk.error.message);
  const text = chunk.choices?.[0]?.delta?.content;
  if (text) {
    $("result").append(text);
    setText($("state"), "Translating");
  }
  const speed = chunk.timings?.predicted_per_second;
  if (chunk.choices?.[0]?.finish_reason === "length") setText($("problem"), "The model stopped at its limit: the end is missing.");
  if (speed) setText($("state"), `${number(chunk.timings.predicted_n)} tokens, ${speed.toFixed(1)} per second`);
  return false;
}

function busy(is) {
  $("go").disabled = is;
  show($("stop"), is);
  $("result").setAttribute("aria-busy", String(is));
  $("copy").disabled = is || !$("result").textContent;
}

async function copy() {
  const text = $("result").textContent;
  try {
    await navigator.clipboard.writeText(text);
    setText($("state"), "Copied");
  } catch {
    // Over plain HTTP from another machine there is no clipboard: it is marked instead.
    getSelection().selectAllChildren($("result"));
    setText($("state"), "Marked; copy it with Ctrl + C");
  }
}

$("form").addEventListener("submit", translate);
$("stop").addEventListener("click", () => running?.abort());
$("copy").addEventListener("click", copy);
$("text").addEventListener("input", showSize);
$("swap").addEventListener("click", () => {
  [$("source").value, $("target").value] = [$("target").value, $("source").value];
  const made = $("result").textContent;
  if (made && !running) {
    $("text").value = made;
    setText($("result"), "");
    showSize();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate();
});
window.addEventListener("pagehide", () => running?.abort());

listModels();
