// Creates and updates elements, without a framework. Owns how a list of items becomes a list of
// elements; it must never know what the items are. Invariant: text is set as text, never as HTML,
// and an element is reused as long as its key exists.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with a class and children, which are elements or texts. */
export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Create an SVG element with attributes. */
export function svg(tag, attributes = {}) {
  const made = document.createElementNS(SVG, tag);
  set(made, attributes);
  return made;
}

/** Set the attributes that changed; null removes one. */
export function set(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) target.removeAttribute(name);
    else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
  }
}

/** Set the text if it changed. */
export function write(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Keeps the children of an element in sync with a list: `make(item)` creates one, `show(child,
 * item)` updates each, `drop(child)` removes one whose item was removed.
 */
export class Keyed {
  constructor(parent, { make, show, drop = (child) => child.remove() }) {
    this.parent = parent;
    this.make = make;
    this.show = show;
    this.drop = drop;
    this.children = new Map();
  }

  /** Update the children. They are ordered only if `ordered`; positions in a drawing need no order. */
  update(items, keyOf, ordered = true) {
    const gone = new Map(this.children);
    let last = null;
    for (const item of items) {
      const key = keyOf(item);
      let child = this.children.get(key);
      if (child === undefined) {
        child = this.make(item);
        this.children.set(key, child);
        if (!ordered) this.parent.append(child);
      }
      gone.delete(key);
      if (ordered && (last ? last.nextSibling : this.parent.firstChild) !== child) {
        if (last) last.after(child);
        else this.parent.prepend(child);
      }
      last = child;
      this.show(child, item);
    }
    for (const [key, child] of gone) {
      this.children.delete(key);
      this.drop(child);
    }
  }
}

/** A value with its name, and a bar that shows its share of the limit. */
export class Meter {
  constructor(name) {
    this.label = element("span", "meter-name", name);
    this.value = element("span", "meter-value");
    this.fill = element("i");
    this.bar = element("span", "bar", this.fill);
    set(this.bar, { role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100 });
    this.root = element("div", "meter", this.label, this.value, this.bar);
  }

  /** Show a text and a share from 0 to 1; without `limited` there is no bar. */
  show(text, fullness, limited = true) {
    write(this.value, text);
    this.bar.hidden = !limited;
    this.root.classList.toggle("limited", limited);
    const full = fullness >= 1 ? "full" : fullness >= 0.8 ? "near" : "well";
    if (this.root.dataset.full !== full) this.root.dataset.full = full;
    set(this.bar, { "aria-valuenow": Math.round(fullness * 100), "aria-valuetext": text });
    this.fill.style.transform = `scaleX(${fullness})`;
  }
}
