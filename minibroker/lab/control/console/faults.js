// Draws the fault rules of the broker, and adds, releases and removes them. Owns that view and when it
// asks the broker; it must never know what a rule does. Invariant: it asks only while the view is
// visible, texts of rules are set as text, and a rejected rule stays in the form with the reason.

import { element, Keyed, set, write } from "./dom.js";
import { ask, poll } from "./polling.js";

const PERIOD_MS = 500;
const COLUMNS = ["rule", "matches", "hits", "held", ""];

/** A rule without its name, as `minibroker faults add` takes it. */
export function ruleText({ action, name, ...fields }) {
  const given = Object.entries(fields).filter(([, value]) => value !== null);
  return [action, ...given.map(([field, value]) => `${field}=${textOf(value)}`)].join(" ");
}

/** What a rule holds, e.g. `Produce of shop, topic orders`. */
export function holdText({ process, api, client_id, ...rest }) {
  const first = api === null ? process : client_id === null ? api : `${api} of ${client_id}`;
  const given = Object.entries(rest).filter(([name, value]) => value !== null && name !== "connection");
  return [first, ...given.map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)].join(", ");
}

function textOf(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export class Faults {
  constructor({ table, form, problem }, isVisible) {
    this.form = form;
    this.problem = problem;
    const head = element("tr");
    for (const name of COLUMNS) {
      const cell = element(name ? "th" : "td", "", name);
      if (name) set(cell, { scope: "col" });
      head.append(cell);
    }
    const body = element("tbody");
    this.empty = element("p", "empty", "No rule is set: the broker behaves.");
    table.append(element("table", "", element("thead", "", head), body), this.empty);
    this.rows = new Keyed(body, { make: (view) => this.make(view), show: (child, view) => this.fill(child, view) });
    form.addEventListener("submit", (event) => this.add(event));
    const silent = () => {}; // Another poller reports whether the broker answers.
    this.look = poll("v1/faults", (answer) => this.draw(answer.faults), silent, PERIOD_MS, isVisible);
  }

  draw(faults) {
    this.rows.update(faults, (view) => view.id);
    this.empty.hidden = faults.length > 0;
  }

  make({ id }) {
    const rule = element("th", "", element("span", "fault-id", id), " ", element("code"), element("ul", "holds"));
    set(rule, { scope: "row" });
    const release = this.button("Release", id, () => ask(`${urlOf(id)}/release`, { method: "POST" }));
    const remove = this.button("Remove", id, () => ask(urlOf(id), { method: "DELETE" }));
    const numbers = COLUMNS.slice(1, 4).map((name) => {
      const cell = element("td");
      set(cell, { "data-label": name });
      return cell;
    });
    return element("tr", "", rule, ...numbers, element("td", "", release, remove));
  }

  button(text, id, onClick) {
    const made = element("button", "", text);
    made.type = "button";
    set(made, { "aria-label": `${text} rule ${id}` });
    made.addEventListener("click", () => this.perform(onClick));
    return made;
  }

  fill(child, view) {
    const [rule, matches, hits, held, buttons] = child.children;
    const [, text, holds] = rule.children;
    write(text, ruleText(view.rule));
    const texts = view.holds.map(holdText);
    if (holds.dataset.shown !== texts.join("\n")) {
      holds.dataset.shown = texts.join("\n");
      holds.replaceChildren(...texts.map((each) => element("li", "", each)));
    }
    for (const [cell, count] of [[matches, view.matches], [hits, view.hits], [held, view.held]]) {
      write(cell, count.toLocaleString("en"));
    }
    buttons.firstChild.hidden = view.held === 0;
  }

  add(event) {
    event.preventDefault();
    const body = new FormData(this.form).get("rule");
    this.perform(() => ask("v1/faults", { method: "POST", body }));
  }

  /** Send a change, and show the rules after it or why it was rejected. */
  async perform(change) {
    let problem = "";
    try {
      await change();
    } catch (error) {
      problem = error.message;
    }
    write(this.problem, problem);
    this.look();
  }
}

function urlOf(id) {
  return `v1/faults/${encodeURIComponent(id)}`;
}
