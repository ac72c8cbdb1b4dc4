// Draws quotas: the usage of each entity, recent throttles, and their reasons. Owns those elements;
// usage.js interprets the responses. It must never know when the broker is polled. Invariant: names
// chosen by clients and users are text, and a row exists as long as its counter.

import { element, Keyed, Meter, set, svg, write } from "./dom.js";
import { LINE, trace } from "./usage.js";
import * as words from "./words.js";

/** The entity of a counter as elements: kinds muted, names unchanged. */
function nameOf(counter) {
  const parts = words.parties(counter).flatMap(([kind, name]) => [element("i", "", kind), element("b", "", name)]);
  return element("span", "party", ...parts);
}

class Line {
  constructor() {
    const { width, height } = LINE;
    this.root = svg("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
    set(this.root, { "aria-hidden": true });
    this.bound = svg("path", { class: "bound" });
    this.use = svg("path", { class: "use" });
    // The same line again, visible only above the quota.
    this.over = svg("svg", { width, overflow: "hidden" });
    this.excess = svg("path", { class: "excess" });
    this.over.append(this.excess);
    this.throttled = svg("path", { class: "throttled" });
    this.root.append(this.bound, this.use, this.over, this.throttled);
  }

  show(line, quota, now) {
    const { use, throttled, bound } = trace(line, quota, now);
    set(this.use, { d: use });
    set(this.excess, { d: use });
    set(this.over, { height: bound });
    set(this.bound, { d: `M0 ${bound}H${LINE.width}` });
    set(this.throttled, { d: throttled });
  }
}

export class Uses {
  constructor(root, { choose }) {
    this.root = root;
    this.choose = choose;
    this.parts = new WeakMap();
    const head = element("tr");
    for (const name of ["entity and quota type", "last two minutes", "usage / quota", "throttle"]) {
      const cell = element("th", "", name);
      set(cell, { scope: "col" });
      head.append(cell);
    }
    const body = element("tbody");
    this.table = element("table", "", element("thead", "", head), body);
    this.empty = element("p", "empty");
    this.advice = element("p", "empty", "To limit each client-id to 1 MiB/s of produced bytes:");
    this.command = element("code", "command");
    set(this.command, { tabindex: 0 });
    this.more = element("p", "more");
    root.append(this.table, this.empty, this.advice, this.command, this.more);
    this.rows = new Keyed(body, {
      make: (use) => this.make(use),
      show: (row, use) => this.fill(row, use),
    });
  }

  make(use) {
    const button = element("button", "entity", nameOf(use), element("span", "what", words.kindOf(use.type)));
    button.type = "button";
    button.addEventListener("click", () => this.choose(use));
    const line = new Line();
    const meter = new Meter(`${words.kindOf(use.type)} of ${words.party(use)}`);
    const throttle = element("span");
    const name = element("th", "", button);
    set(name, { scope: "row" });
    const cells = [line.root, meter.root, throttle].map((each) => element("td", "", each));
    const row = element("tr", "", name, ...cells);
    row.dataset.type = use.type;
    this.parts.set(row, { button, line, meter, throttle });
    return row;
  }

  fill(row, use) {
    const { button, line, meter, throttle } = this.parts.get(row);
    const { type, key, rate, quota, throttled } = use;
    line.show(this.scene.lines.get(key), quota, this.scene.now);
    meter.show(words.use(type, rate, quota), words.fullness(rate, quota));
    write(throttle, words.throttle(use));
    throttle.className = throttled === null ? "calm" : "held";
    row.classList.toggle("held", throttled !== null);
    // Two equal animations alternate, so that each new throttle starts one.
    if (use.again && this.isNew) row.dataset.beat = row.dataset.beat === "1" ? "2" : "1";
    set(button, { "aria-pressed": key === this.chosen });
  }

  /** Ordered by usage, but rows keep their positions while the pointer is on one. */
  inOrder(uses) {
    if (!this.root.matches(":hover, :focus-within")) return uses;
    const found = new Map(uses.map((use) => [use.key, use]));
    const stay = [...this.rows.children.keys()].filter((key) => found.has(key));
    return [...stay.map((key) => found.get(key)), ...uses.filter(({ key }) => !this.rows.children.has(key))];
  }

  show(scene, chosen, bootstrap) {
    this.isNew = scene !== this.scene;
    this.scene = scene;
    this.chosen = chosen;
    this.rows.update(this.inOrder(scene.uses), (use) => use.key);
    const none = scene.uses.length === 0;
    this.table.hidden = none;
    for (const each of [this.empty, this.advice, this.command]) each.hidden = !none;
    const why = scene.counting ? "No quota applies to recently active clients." : "No quota is set.";
    write(this.empty, why);
    const at = bootstrap ? ` -b ${bootstrap}` : "";
    write(this.command, `minibroker configs${at} --alter --client-defaults --add-config producer_byte_rate=1048576`);
    write(this.more, none ? "" : words.rest(scene));
  }
}

export class Throttles {
  constructor(root, { choose }) {
    this.choose = choose;
    this.parts = new WeakMap();
    const list = element("ol", "throttles");
    this.empty = element("p", "empty", "No client was throttled recently.");
    root.append(list, this.empty);
    this.items = new Keyed(list, {
      make: (throttle) => this.make(throttle),
      show: (item, throttle) => this.fill(item, throttle),
    });
  }

  make(throttle) {
    const button = element("button", "entity", nameOf(throttle));
    button.type = "button";
    button.addEventListener("click", () => this.choose(this.parts.get(item).newest));
    const [delay, times] = [element("span", "delay"), element("span", "times")];
    const ago = element("span", "ago");
    const what = element("p", "what", `${throttle.api} · ${words.kindOf(throttle.type)}`);
    const item = element("li", "", element("div", "throttle-head", button, delay, times, ago), what);
    this.parts.set(item, { button, delay, times, ago });
    return item;
  }

  fill(item, throttle) {
    const { key, throttle_ms: delay, times, ago_ms: ago } = throttle;
    const parts = this.parts.get(item);
    parts.newest = throttle;
    set(parts.button, { "aria-pressed": key === this.chosen });
    write(parts.delay, words.duration(delay));
    write(parts.times, times > 1 ? `× ${words.count(times)}` : "");
    write(parts.ago, words.ago(ago));
    item.classList.toggle("held", delay > ago);
  }

  show({ throttles }, chosen) {
    this.chosen = chosen;
    this.items.update(throttles, (throttle) => throttle.key);
    this.empty.hidden = throttles.length > 0;
  }
}

export class Explained {
  constructor(root) {
    this.empty = element("p", "empty", "Click an entity to see why it is throttled or not, or a throttle to see its reason.");
    this.who = element("p", "note");
    this.verdict = element("p", "verdict");
    this.formula = element("p", "formula");
    this.facts = element("dl");
    this.values = ["rate", "quota", "set at", "shared"].map((name) => {
      const value = element("dd");
      this.facts.append(element("dt", "", name), value);
      return value;
    });
    this.caption = element("p", "what", "Where it can be set; the first one that is set applies:");
    const list = element("ol", "levels");
    this.explanation = [this.who, this.verdict, this.formula, this.facts, this.caption, list];
    root.append(this.empty, ...this.explanation);
    this.levels = new Keyed(list, {
      make: ({ path }) => element("li", "", element("code", "", path), element("span", "level-value"), element("span", "why")),
      show: (item, level) => this.fill(item, level),
    });
    this.show(null);
  }

  fill(item, { value, holds, why }) {
    const [, number, reason] = item.children;
    write(number, value === null ? "" : words.exact(value));
    write(reason, why);
    item.className = holds ? "holds" : value === null ? "unset" : "";
  }

  /**
   * Show the broker's explanation, or `why` there is none, for `counter`. For a past throttle, rate,
   * quota and formula are those of its time.
   */
  show(counter, found = null, why = null) {
    this.empty.hidden = counter !== null;
    for (const each of this.explanation) each.hidden = counter === null || (each !== this.who && found === null);
    if (counter === null) return;
    write(this.who, `${words.kindOf(counter.type)} of ${words.party(counter)}`);
    if (why !== null) {
      this.verdict.hidden = false;
      this.verdict.classList.remove("held");
      write(this.verdict, `No explanation: ${why}`);
    }
    if (found === null) return;
    const { type, rate, quota, path, window_ms: window, throttle_ms: delay, sharing, formula } = found;
    write(this.verdict, words.verdict(found));
    this.verdict.classList.toggle("held", delay > 0);
    write(this.formula, formula);
    const [rates, quotas, places, shared] = this.values;
    write(rates, `${words.amount(type, rate)} over the last ${words.duration(window)}`);
    write(quotas, quota === null ? "none" : words.amount(type, quota));
    write(places, path ?? "nowhere");
    write(shared, sharing);
    this.levels.update(found.levels, (level) => level.path);
  }
}
