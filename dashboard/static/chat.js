// llama.cpp's own page of each replica, in tabs. A page that has been opened stays, so that nothing said in it is lost.
import { get, post, root } from "./lib/api.js";
import { el, keyed, setAttribute, setClass, setText, show } from "./lib/dom.js";
import { toast } from "./lib/toast.js";

const LOOK_MS = 2000;
const PHASES = { loading: "Loading", draining: "Finishing its work", stopping: "Being stopped" };

const $ = (id) => document.getElementById(id);

/** Name of a tab to what is known of it; a name is the model's, or `model#index` where it has several replicas. */
const tabs = new Map();
let selected = named(location.hash.slice(1));

/** What stands in the address; nothing where somebody has mangled it. */
function named(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

async function look() {
  try {
    const { models } = await get("router/models");
    show($("notice"), false);
    take(models);
  } catch (error) {
    setText($("notice"), `What is loaded is not known: ${error.message}.`);
    show($("notice"), true);
    show($("waiting"), false);
  }
}

function take(models) {
  const ready = new Map();
  for (const model of models) {
    const up = model.instances.filter((replica) => replica.phase === "ready");
    for (const replica of up) ready.set(model.num_instance > 1 ? `${model.name}#${replica.index}` : model.name, model.name);
  }
  for (const tab of tabs.values()) tab.ready = ready.has(tab.name);
  for (const [name, model] of ready) if (!tabs.has(name)) tabs.set(name, { name, model, ready: true, frame: null });
  for (const tab of [...tabs.values()]) if (!tab.ready && !tab.frame) tabs.delete(tab.name);
  if (!tabs.has(selected)) selected = tabs.keys().next().value ?? "";
  showTabs();
  showModels(models, ready);
}

function showTabs() {
  show($("chat"), tabs.size > 0);
  keyed($("tabs"), [...tabs.values()], (tab) => tab.name, makeTab, (button, tab) => {
    const [dot, name] = button.children;
    setClass(dot, tab.ready ? "dot ok" : "dot");
    setText(name, tab.name);
    setAttribute(button, "title", tab.name);
    setAttribute(button, "aria-selected", tab.name === selected);
    setAttribute(button, "tabindex", tab.name === selected ? "0" : "-1");
  });
  const tab = tabs.get(selected);
  for (const each of tabs.values()) if (each.frame) show(each.frame, each === tab);
  if (!tab) return;
  if (!tab.frame) {
    tab.frame = el("iframe", {
      src: pageOf(tab.name),
      title: `Chat with ${tab.name}`,
      allow: "clipboard-write; microphone",
      className: "opening",
      onload: () => setClass(tab.frame, ""),
    });
    $("frames").append(tab.frame);
  }
  setAttribute($("alone"), "href", pageOf(tab.name));
  show($("unloaded"), !tab.ready);
  setText($("unloaded"), `${tab.model} is not loaded now. What you send loads it again.`);
}

function makeTab(tab) {
  const choose = () => {
    selected = tab.name;
    history.replaceState(null, "", `#${encodeURIComponent(selected)}`);
    showTabs();
  };
  const button = el("button", { type: "button", role: "tab", onclick: choose }, el("span", { className: "dot" }), el("span", { className: "name" }));
  button.addEventListener("keydown", (event) => {
    const next = { ArrowRight: button.nextElementSibling, ArrowLeft: button.previousElementSibling }[event.key];
    if (!next) return;
    next.click();
    next.focus();
  });
  return button;
}

function pageOf(name) {
  return `${root}instance/${encodeURIComponent(name)}/`;
}

function showModels(models, ready) {
  const loaded = new Set(ready.values());
  const others = models.filter((model) => !loaded.has(model.name));
  show($("waiting"), false);
  show($("nothing"), loaded.size === 0);
  show($("others"), others.length > 0);
  keyed($("models"), others, (model) => model.name, makeModel, (row, model) => {
    const [name, state, button] = row.children;
    setText(name, model.name);
    setAttribute(name, "title", model.name);
    const phase = PHASES[model.phase] ?? (model.queued ? "Waits for a GPU" : "");
    const failure = model.status?.failure;
    setText(state, phase || (failure ? "Failed last time" : ""));
    setClass(state, failure && !phase ? "badge bad" : "badge info");
    setAttribute(state, "title", failure ? (failure.reason ?? JSON.stringify(failure)) : null);
    show(state, Boolean(phase || failure));
    show(button, !phase);
  });
}

function makeModel(model) {
  const load = async (event) => {
    const button = event.currentTarget;
    button.setAttribute("aria-busy", "true");
    try {
      await post("models/load", { model: model.name });
      toast(`${model.name} is being loaded.`, "info");
      await look();
    } catch (error) {
      toast(`${model.name} cannot be loaded: ${error.message}.`, "bad");
    } finally {
      button.removeAttribute("aria-busy");
    }
  };
  return el(
    "li",
    {},
    el("span", { className: "name" }),
    el("span", { className: "badge info", hidden: true }),
    el("button", { type: "button", className: "button small", onclick: load, "aria-label": `Load ${model.name}` }, "Load"),
  );
}

async function keepLooking() {
  if (!document.hidden) await look();
  setTimeout(keepLooking, LOOK_MS);
}

keepLooking();
