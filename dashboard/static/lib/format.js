// Numbers in the form in which people read them. Counterpart: dashboard/wording.py. What is not known is a dash.

export const UNKNOWN = "–";

const isUnknown = (value) => value === null || value === undefined;

function parts(large, largeUnit, small, smallUnit) {
  return small ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** Microseconds: 850 ms, 12.4 s, 3 min 20 s, 2 h 5 min, 4 d 3 h. */
export function duration(us) {
  if (isUnknown(us)) return UNKNOWN;
  if (us < 0) return `-${duration(-us)}`;
  if (us < 1000) return us ? `${Math.round(us)} µs` : "0 s";
  if (us < 999_500) return us < 10_000 ? `${(us / 1e3).toFixed(1)} ms` : `${Math.round(us / 1e3)} ms`;
  if (us < 59_950_000) return us < 9_995_000 ? `${(us / 1e6).toFixed(2)} s` : `${(us / 1e6).toFixed(1)} s`;
  const seconds = Math.round(us / 1e6);
  if (seconds < 3600) return parts(Math.floor(seconds / 60), "min", seconds % 60, "s");
  const minutes = Math.round(us / 60e6);
  if (minutes < 24 * 60) return parts(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(us / 3600e6);
  return parts(Math.floor(hours / 24), "d", hours % 24, "h");
}

/** The same in whole seconds, for what changes while it is looked at. */
export function ticking(us) {
  if (isUnknown(us)) return UNKNOWN;
  return us < 60e6 ? `${Math.max(0, Math.floor(us / 1e6))} s` : duration(us);
}

/** 12,345; from a million on 1.23 M. */
export function count(number) {
  if (isUnknown(number)) return UNKNOWN;
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"]]) {
    if (Math.abs(number) >= limit) return `${Number((number / limit).toPrecision(3)).toLocaleString("en")} ${unit}`;
  }
  if (Number.isInteger(number) || Math.abs(number) >= 100) return Math.round(number).toLocaleString("en");
  return String(Number(number.toPrecision(3)));
}

/** Of a share between 0 and 1. Never 100 % unless it is all, nor 0 % unless it is nothing. */
export function percent(share) {
  if (isUnknown(share)) return UNKNOWN;
  const value = share * 100;
  if (value > 99.9 && value < 100) return ">99.9 %";
  if (value > 0 && value < 0.1) return "<0.1 %";
  return Number.isInteger(value) ? `${value} %` : `${value.toFixed(1)} %`;
}

/** Memory in MiB, from 1024 on in GiB. */
export function mib(number) {
  if (isUnknown(number)) return UNKNOWN;
  return number < 1024 ? `${Math.round(number)} MiB` : `${(number / 1024).toFixed(1)} GiB`;
}

/** Something per second. */
export function rate(perS) {
  if (isUnknown(perS)) return UNKNOWN;
  return perS < 100 ? `${perS.toFixed(1)}/s` : `${Math.round(perS).toLocaleString("en")}/s`;
}

const two = (number) => String(number).padStart(2, "0");

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
