// The panels below the drawing: addresses, rejections, warnings, and the selection. Owns those
// elements and reuses them while their subject exists, so that nothing moves under a pointer. It must
// never know how a response is read; a new panel is a new class with a method `show`.

import { element, Keyed, Meter, set, write } from "./dom.js";
import { ipOf } from "./model.js";
import * as words from "./words.js";

/** Connections listed in a selection, at most. */
const LISTED_MAX = 50;

export class Addresses {
  constructor(root, { choose, point }) {
    this.root = root;
    this.choose = choose;
    this.point = point;
    this.parts = new WeakMap();
    const head = element("tr");
    for (const name of ["address", "connections", "new per second"]) {
      const cell = element("th", "", name);
      set(cell, { scope: "col" });
      head.append(cell);
    }
    const body = element("tbody");
    this.table = element("table", "", element("thead", "", head), body);
    this.empty = element("p", "empty", "No clients are connected.");
    this.more = element("p", "more");
    root.append(this.table, this.empty, this.more);
    this.rows = new Keyed(body, {
      make: (address) => this.make(address),
      show: (row, address) => this.fill(row, address),
    });
  }

  make({ ip }) {
    const button = element("button", "address", ip);
    button.type = "button";
    button.addEventListener("click", () => this.choose(ip));
    const meters = [new Meter(`connections of ${ip}`), new Meter(`rate of ${ip}`)];
    const name = element("th", "", button);
    set(name, { scope: "row" });
    const row = element("tr", "", name, ...meters.map((meter) => element("td", "", meter.root)));
    row.addEventListener("pointerenter", () => this.point(ip));
    row.addEventListener("pointerleave", () => this.point(null));
    this.parts.set(row, { button, meters });
    return row;
  }

  fill(row, { ip, connections, limit, rate, rate_limit: rateLimit }) {
    const { button, meters } = this.parts.get(row);
    meters[0].show(words.against(connections, limit), words.fullness(connections, limit), limit !== null);
    meters[1].show(words.rate(rate, rateLimit), words.fullness(rate, rateLimit), rateLimit !== null);
    set(button, { "aria-pressed": ip === this.chosen });
  }

  /** In the broker's order, but rows keep their positions while the pointer is on one. */
  inOrder(addresses) {
    if (!this.root.matches(":hover, :focus-within")) return addresses;
    const found = new Map(addresses.map((address) => [address.ip, address]));
    const stay = [...this.rows.children.keys()].filter((ip) => found.has(ip));
    const rest = addresses.filter(({ ip }) => !this.rows.children.has(ip));
    return [...stay.map((ip) => found.get(ip)), ...rest];
  }

  show({ addresses, addressesTotal }, chosen) {
    this.chosen = chosen;
    this.rows.update(this.inOrder(addresses), (address) => address.ip);
    this.empty.hidden = addresses.length > 0;
    this.table.hidden = addresses.length === 0;
    const left = addressesTotal - addresses.length;
    write(this.more, left > 0 ? `and ${words.count(left)} with fewer connections` : "");
  }
}

export class Rejections {
  constructor(root) {
    this.parts = new WeakMap();
    const list = element("ol", "rejections");
    this.empty = element("p", "empty", "No connection was rejected recently.");
    root.append(list, this.empty);
    this.items = new Keyed(list, {
      make: (rejection) => this.make(rejection),
      show: (item, rejection) => this.fill(item, rejection),
    });
  }

  make({ ip, listener, reason }) {
    const parts = {
      times: element("span", "times"),
      ago: element("span", "ago"),
      text: element("p"),
    };
    const head = element("div", "rejection-head", element("strong", "", ip), parts.times);
    head.append(element("span", "at", listener), parts.ago);
    const item = element("li", "", head, parts.text);
    item.dataset.reason = reason;
    this.parts.set(item, parts);
    return item;
  }

  fill(item, { times, ago_ms: ago, text }) {
    const parts = this.parts.get(item);
    write(parts.times, times > 1 ? `× ${words.count(times)}` : "");
    write(parts.ago, words.ago(ago));
    write(parts.text, text);
  }

  show({ rejections }) {
    this.items.update(rejections, (rejection) => rejection.key);
    this.empty.hidden = rejections.length > 0;
  }
}

/** Conditions of the broker's processes, or clients that request a protocol that is not served. */
export class Warnings {
  constructor(root) {
    this.parts = new WeakMap();
    const list = element("ol", "rejections");
    root.append(list);
    this.items = new Keyed(list, {
      make: (warning) => this.make(warning),
      show: (item, warning) => this.fill(item, warning),
    });
  }

  make({ about }) {
    const parts = {
      who: element("strong"), times: element("span", "times"), ago: element("span", "ago"), text: element("p"),
    };
    const head = element("div", "rejection-head", parts.who, parts.times, element("span", "at", about), parts.ago);
    const item = element("li", "", head, parts.text);
    this.parts.set(item, parts);
    return item;
  }

  fill(item, { who, times = 1, ago = null, text }) {
    const parts = this.parts.get(item);
    write(parts.who, who);
    write(parts.times, times > 1 ? `× ${words.count(times)}` : "");
    write(parts.ago, ago === null ? "" : words.ago(ago));
    write(parts.text, text);
  }

  show(warnings) {
    this.items.update(warnings, (warning) => warning.key);
  }
}

/** The facts of one connection, in the order of their importance. */
const FACTS = [
  ["address", (connection) => connection.client_address],
  ["user", (connection) => connection.principal],
  ["client id", (connection) => connection.client_id ?? "none yet"],
  ["software", words.software],
  ["state", (connection) => connection.state],
  ["in flight", (connection) => connection.in_flight ?? "nothing"],
  ["open for", (connection) => words.duration(connection.age_ms)],
  ["idle for", (connection) => words.duration(connection.idle_ms)],
  ["listener", (connection) => connection.listener],
  ["processor", (connection) => connection.processor],
  ["id", (connection) => connection.connection_id],
];

export class Chosen {
  constructor(root, { choose }) {
    this.choose = choose;
    this.empty = element("p", "empty", "Click a connection or an address, or select one with the arrow keys.");
    this.note = element("p", "note");
    this.values = new Map();
    this.facts = element("dl");
    for (const [name] of FACTS) {
      const value = element("dd");
      this.values.set(name, value);
      this.facts.append(element("dt", "", name), value);
    }
    const list = element("ul", "listed");
    this.more = element("p", "more");
    root.append(this.empty, this.note, this.facts, list, this.more);
    this.list = new Keyed(list, {
      make: (connection) => this.makeItem(connection),
      show: (item, connection) => write(item.firstChild, words.brief(connection)),
    });
  }

  makeItem({ connection_id: key }) {
    const button = element("button");
    button.type = "button";
    button.addEventListener("click", () => this.choose(key));
    return element("li", "", button);
  }

  /** Show one connection, `gone` if it has closed; or many, with a heading; or nothing. */
  show({ connection = null, gone = false, heading = "", many = [] }) {
    this.empty.hidden = connection !== null || heading !== "";
    this.facts.hidden = connection === null;
    this.facts.classList.toggle("gone", gone);
    write(this.note, gone ? "This connection is closed." : heading);
    if (connection) {
      for (const [name, read] of FACTS) write(this.values.get(name), read(connection));
    }
    this.list.update(many.slice(0, LISTED_MAX), (each) => each.connection_id);
    const left = many.length - LISTED_MAX;
    write(this.more, left > 0 ? `and ${words.count(left)} more` : "");
  }
}

/** The connections from one address. */
export function ofAddress(connections, ip) {
  return [...connections.values()].filter((each) => ipOf(each.client_address) === ip);
}
