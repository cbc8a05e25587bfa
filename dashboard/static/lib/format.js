// Values with their units, as people read them. Counterpart: dashboard/units.py. What is not known is a dash.

export const UNKNOWN = "–";

const isUnknown = (value) => value === null || value === undefined;
const MINUTE_US = 60e6;
const HOUR_US = 60 * MINUTE_US;
const DAY_US = 24 * HOUR_US;

function parts(whole, each, unit, rest) {
  const large = Math.floor(whole / each);
  const small = whole % each;
  return small ? `${large} ${unit} ${small} ${rest}` : `${large} ${unit}`;
}

/** Microseconds: 850 µs, 80 ms, 1.25 s, 3 min 20 s, 2 h 5 min, 4 d 3 h. */
export function duration(us) {
  if (isUnknown(us)) return UNKNOWN;
  if (us < 0) return `−${duration(-us)}`;
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 999_500) return `${Number((us / 1000).toPrecision(3))} ms`;
  if (us < 2 * MINUTE_US) return `${Number((us / 1e6).toFixed(us < 10e6 ? 2 : 1))} s`;
  if (us < 2 * HOUR_US) return parts(Math.round(us / 1e6), 60, "min", "s");
  if (us < 2 * DAY_US) return parts(Math.round(us / MINUTE_US), 60, "h", "min");
  return parts(Math.round(us / HOUR_US), 24, "d", "h");
}

/** The same in whole seconds, for what changes while it is looked at. */
export function ticking(us) {
  if (isUnknown(us)) return UNKNOWN;
  return us < 2 * MINUTE_US ? `${Math.max(0, Math.floor(us / 1e6))} s` : duration(us);
}

/** Whole numbers whole and with separators, others with three digits that matter. */
export function number(value) {
  if (isUnknown(value)) return UNKNOWN;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

/** The same for a tile: 12,345, but 1.23 M. */
export function short(value) {
  if (isUnknown(value)) return UNKNOWN;
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"]]) {
    if (Math.abs(value) >= limit) return `${Number((value / limit).toPrecision(3)).toLocaleString("en")} ${unit}`;
  }
  return number(value);
}

/** 1 request, 2 requests. */
export function count(value, noun, plural = `${noun}s`) {
  return isUnknown(value) ? UNKNOWN : `${value.toLocaleString("en")} ${value === 1 ? noun : plural}`;
}

/** 83.4 tokens/s */
export function rate(perS, unit = "tokens") {
  return isUnknown(perS) ? UNKNOWN : `${number(perS)} ${unit}/s`;
}

/** A share of 1. Never 100 % unless it is all. */
export function percent(share) {
  if (isUnknown(share)) return UNKNOWN;
  const value = 100 * share;
  if (value > 99.9 && value < 100) return ">99.9 %";
  if (value >= 99.5 && value < 100) return `${value.toFixed(1)} %`;
  return share === 0 || share === 1 || value >= 10 ? `${Math.round(value)} %` : `${Number(value.toPrecision(2))} %`;
}

/** Memory of GPUs: MiB, or GiB from 10 of them on. */
export function mib(value) {
  if (isUnknown(value)) return UNKNOWN;
  return value >= 10 * 1024 ? `${Number((value / 1024).toPrecision(3))} GiB` : `${number(Math.round(value))} MiB`;
}

const two = (value) => String(value).padStart(2, "0");

function sameDay(a, b) {
  return a.getFullYear() === b.getFullYear() && a.getMonth() === b.getMonth() && a.getDate() === b.getDate();
}

/** A moment in the reader's own time: 14:03:22, with the date where it is not today's. */
export function moment(us) {
  if (isUnknown(us)) return UNKNOWN;
  const at = new Date(us / 1000);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (sameDay(at, new Date())) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

export function momentInFull(us) {
  return isUnknown(us) ? "" : new Date(us / 1000).toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
}
