// Talking to the router, from whatever path this page is served under.

/** The way to the router's own "/". */
export const root = document.documentElement.dataset.root;

/** An answer that is not good. `message` is fit to be shown; `param` is what of the question it is about, if it is about one part. */
export class Failed extends Error {
  constructor(status, message, param = "") {
    super(message);
    this.status = status;
    this.param = param;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(root + path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed(0, "the router cannot be reached");
  }
  const text = await response.text();
  let told = null;
  try {
    told = text ? JSON.parse(text) : null;
  } catch {
    // An answer of a proxy in between; its status says enough.
  }
  if (response.status === 401) logInAgain();
  if (!response.ok) throw new Failed(response.status, told?.error?.message ?? `the answer was ${response.status}`, told?.error?.param ?? "");
  return told;
}

/** A login that has ended: the router sends the page itself to its form, and back here afterwards. */
function logInAgain() {
  const key = "reloaded";
  if (Date.now() - Number(sessionStorage.getItem(key)) < 30_000) return;
  sessionStorage.setItem(key, Date.now());
  location.reload();
}

export function get(path, options = {}) {
  return ask(path, options);
}

export function post(path, body = {}, options = {}) {
  const headers = { "content-type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), ...options });
}
