// Draws requests as they happen, and the frames of a selected one. Owns that view and when it asks the
// broker; trace.js interprets the answers. Invariant: it asks only while the view is visible, text of
// clients is set as text, and the journal is switched only by its button.

import { element, Keyed, set, write } from "./dom.js";
import { ask, pauseAfter } from "./polling.js";
import { advance, EMPTY, stagesText, timeOf } from "./trace.js";

const PERIOD_MS = 500;
const COLUMNS = ["time", "client", "request", "bytes", "ms", "queue/exec/net/send"];

export class Requests {
  constructor({ form, button, table, detail }, isVisible) {
    this.isVisible = isVisible;
    this.form = form;
    this.button = button;
    this.detail = detail;
    this.scene = EMPTY;
    this.isOn = false;
    this.chosen = null;
    this.version = 0;
    this.failures = 0;
    const head = element("tr");
    for (const name of COLUMNS) {
      const cell = element("th", "", name);
      set(cell, { scope: "col" });
      head.append(cell);
    }
    const body = element("tbody");
    this.empty = element("p", "empty");
    table.append(element("table", "", element("thead", "", head), body), this.empty);
    this.rows = new Keyed(body, { make: (row) => this.make(row), show: (child, row) => this.fill(child, row) });
    form.addEventListener("input", () => this.restart());
    form.addEventListener("submit", (event) => event.preventDefault());
    button.addEventListener("click", () => this.toggle());
    document.addEventListener("visibilitychange", () => this.look());
    this.draw();
  }

  /** Ask now, e.g. because the view became visible. */
  look() {
    clearTimeout(this.timer);
    if (this.isVisible() && !document.hidden) this.poll();
  }

  async poll() {
    const version = ++this.version;
    const began = performance.now();
    try {
      const state = await ask("v1/journal/state");
      const page = state.enabled || state.last ? await ask(`v1/journal?${this.query()}`) : null;
      if (version !== this.version) return; // Another question was asked in the meantime.
      this.isOn = state.enabled;
      if (page !== null) this.scene = advance(this.scene, page);
      this.failures = 0;
    } catch (error) {
      if (version !== this.version) return;
      this.failures += 1;
    }
    this.draw();
    this.timer = setTimeout(() => this.look(), pauseAfter(this.failures, performance.now() - began, PERIOD_MS));
  }

  query() {
    const query = new URLSearchParams({ after: this.scene.after, limit: 1000 });
    for (const [name, value] of new FormData(this.form)) if (value) query.set(name, value);
    return query;
  }

  restart() {
    this.scene = EMPTY;
    this.look();
  }

  async toggle() {
    const body = JSON.stringify({ enabled: !this.isOn });
    await ask("v1/journal", { method: "POST", body }).catch(() => null);
    this.look();
  }

  draw() {
    write(this.button, this.isOn ? "Stop recording" : "Record");
    set(this.button, { "aria-pressed": this.isOn });
    const { rows } = this.scene;
    this.rows.update([...rows].reverse(), (row) => row.key);
    this.empty.hidden = rows.length > 0;
    write(this.empty, this.isOn ? "No entry matches yet." : "The journal is off. Record to see requests.");
  }

  make(row) {
    const cells = COLUMNS.map(() => element("td"));
    const button = element("button", "entity", row.text);
    button.type = "button";
    button.addEventListener("click", () => this.choose(row.key));
    cells[2].append(button);
    return element("tr", row.kind, ...cells);
  }

  fill(child, row) {
    const [time, client, request, bytes, ms, stages] = child.children;
    write(time, timeOf(row.clock));
    write(client, row.subject);
    set(client, { title: row.connection === null ? null : `connection ${row.connection}` });
    set(request.firstChild, { "aria-pressed": this.chosen === row.key });
    write(bytes, row.bytes === null && row.received === null ? "" : `${row.bytes ?? "?"} → ${row.received ?? "…"}`);
    write(ms, row.total === null ? "" : row.total.toFixed(1));
    write(stages, [stagesText(row.stages), row.throttle ? `throttle ${row.throttle} ms` : ""].filter(Boolean).join("; "));
  }

  async choose(key) {
    this.chosen = this.chosen === key ? null : key;
    this.draw();
    const row = this.scene.rows.find((each) => each.key === this.chosen);
    const texts = [];
    for (const sequence of row ? [row.request, row.response] : []) {
      if (sequence !== null) texts.push(await this.frame(sequence));
    }
    if (this.chosen !== (row?.key ?? null)) return;
    const blocks = texts.map((text) => element("pre", "frame", text));
    if (row && !texts.length) blocks.push(element("p", "", row.text));
    this.detail.replaceChildren(...blocks);
  }

  async frame(sequence) {
    try {
      return (await ask(`v1/journal/frames/${sequence}`)).text;
    } catch (error) {
      return error.message;
    }
  }
}
