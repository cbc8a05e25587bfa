// Building and changing the page. Text always becomes a text node: what a client or a model wrote is shown, never run.

/** An element. `given`: className, dataset, on… handlers, and attributes; children are nodes, strings or null. */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "className") made.className = value;
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2).toLowerCase(), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets the text only where it differs, so that selections and screen readers are left in peace. */
export function setText(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/**
 * Makes the children of `parent` those of `items`, in their order; an item that was there keeps its element, and with
 * it focus, selection and scroll position. `update(element, item)` is called for each, `create(item)` for new ones.
 */
export function keyed(parent, items, keyOf, create, update) {
  const before = new Map();
  for (const child of [...parent.children]) {
    if (child.dataset.key !== undefined) before.set(child.dataset.key, child);
  }
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const row = [...parent.children].findIndex((child) => child.contains(focused));
  const wanted = new Set(items.map((item) => String(keyOf(item))));
  // What goes, goes first: those behind it then stay where they are.
  for (const [key, child] of before) if (!wanted.has(key)) child.remove();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = before.get(key);
    if (child) before.delete(key);
    else {
      child = create(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  if (focused && document.activeElement !== focused) refocus(parent, focused, row);
}

/** The focus was lost: with an element that was moved, or that is gone. Then what is like it in the next row has it. */
function refocus(parent, focused, row) {
  const heir = parent.children[Math.min(row, parent.children.length - 1)];
  const to = focused.isConnected ? focused : (heir?.querySelector(focused.localName) ?? parent.closest("[tabindex]"));
  to?.focus({ preventScroll: true });
}
