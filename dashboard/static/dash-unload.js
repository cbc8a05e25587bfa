// How models are unloaded: when their work is done, or now. Who would notice is counted, and told before it happens.
import { el } from "./lib/dom.js";
import { count, number } from "./lib/format.js";
import { choose } from "./lib/toast.js";

export const SOON = "soon";
export const NOW = "now";

/** Whether somebody would notice. `model`: a row of the router's /status. */
export function isInUse(model) {
  return model.phase !== "ready" || model.in_flight > 0 || model.queued > 0;
}

/** Asks when these models, all of them loaded or on their way, are to leave: SOON, NOW, or "" for not at all. */
export function askHow(title, models) {
  const one = models.length === 1;
  const [it, keep] = one ? ["it", "Keep it"] : ["them", "Keep them"];
  if (!models.some(isInUse)) {
    const text = `${one ? models[0].name : `${number(models.length)} models`}: nobody uses ${it} at the moment.`;
    return choose(title, [text], [{ value: SOON, label: "Unload" }], keep);
  }
  const running = sum(models, "in_flight");
  const waiting = sum(models, "queued");
  const loading = models.some((model) => model.phase === "loading");
  const sentences = [
    !one && `${number(models.length)} models are loaded or on their way.`,
    running && `${count(running, "request runs", "requests run")} on ${it}.`,
    waiting && `${count(waiting, "request waits", "requests wait")} for ${it}.`,
  ];
  const here = sentences.filter(Boolean).join(" ");
  const soon = [
    loading && "what loads gets ready first",
    running && "running answers end first",
    waiting && `waiting requests stay in the queue and load ${it} again`,
  ];
  const now = [loading && "loading is broken off", running && "running answers end with an error", `requests that wait for ${it} fail`];
  if (models.every((model) => model.phase === "draining" || model.phase === "stopping")) {
    const text = one ? "It leaves already, once its work is done." : "They leave already, once their work is done.";
    return choose(title, [here, text, choice("Now", now)], [cut], keep);
  }
  const later = { value: SOON, label: "When done" };
  return choose(title, [here, choice("When done", soon), choice("Now", now)], [later, cut], keep);
}

/** What was done, by the router's answer. */
export function wordsAfter(name, how, outcome) {
  if (outcome !== "pending") return `${name} is unloaded.`;
  return how === NOW ? `${name} is being unloaded.` : `${name} is unloaded once its work is done.`;
}

const cut = { value: NOW, label: "Unload now", hurts: true };

function sum(models, key) {
  return models.reduce((total, model) => total + model[key], 0);
}

function choice(when, effects) {
  return el("span", {}, el("strong", {}, `${when}: `), `${effects.filter(Boolean).join("; ")}.`);
}
