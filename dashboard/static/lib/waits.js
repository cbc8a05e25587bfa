// Why a queued request waits, in a few plain words, from `blocked_by` of /status. Counterpart: router/api/waiting.py.

function names(by) {
  const told = by.map((each) => (each.startsWith("rid:") ? `request ${each.slice(4)}` : each));
  if (told.length === 0) return "others";
  if (told.length > 3) return `${told.slice(0, 3).join(", ")} and ${told.length - 3} more`;
  return told.length === 1 ? told[0] : `${told.slice(0, -1).join(", ")} and ${told.at(-1)}`;
}

const WORDS = {
  order: (by) => (by.length ? `Behind ${names(by)}` : "Its turn comes next"),
  slots: () => "All slots of its model are busy",
  loading: () => "Its model is being loaded",
  leaving: () => "Its model is being unloaded and loads again after that",
  key_limit: (by) => `Key ${names(by)} has reached its limit of requests at once`,
  suspect: () => "Its replica lost a connection and is being checked",
  alone: () => "A replica crashed while it ran, so now it runs alone",
  grace: (by) => `${names(by)} must leave first and is still in use; others may go ahead until its grace is over`,
  claimed: (by) => `${names(by)} comes first on its GPUs`,
  swapping: (by) => `A swap is under way on its GPUs: ${names(by)}`,
  protected: (by) => `${names(by)} still wants a model that would have to leave`,
  evicting: (by) => `${names(by)} cannot leave yet`,
  gpu_out: () => "A GPU that it needs is out of service",
  cooling: () => "Its model failed a moment ago and is not tried again yet",
};

export function waitsFor(blocked) {
  const told = WORDS[blocked.why]?.(blocked.by) ?? blocked.why;
  // A model's name at the beginning stays as it is.
  return told.replace(/^request /, "Request ");
}
