// Draws consumer groups: their lag over time, members, assignment and offsets, and resets offsets. Owns
// that view and when it asks the broker; plots.js computes the lines. It must never decide whether a
// reset is possible: the broker does. Invariant: it asks only while the view is visible, names chosen by
// clients are set as text, and a rejected reset stays in the form with the reason.

import { element, Keyed, set, svg, write } from "./dom.js";
import { LARGE, plot, SMALL } from "./plots.js";
import { ask, poll } from "./polling.js";
import * as words from "./words.js";

const PERIOD_MS = 2000;
const COLUMNS = ["group", "state", "members", "lag", "lag over time"];
const MEMBER_COLUMNS = ["member", "client", "epoch", "assigned", "target"];
const OFFSET_COLUMNS = ["topic", "partition", "committed", "end", "lag"];

/** `orders 0, 1; payments 3` */
export function assignmentText(assignment) {
  return assignment.map(({ topic, partitions }) => `${topic} ${partitions.join(", ")}`).join("; ");
}

/** The texts of a member; in a classic group it has no epoch and target of its own. */
export function memberTexts({ member_id: id, group_instance_id: instance, client_id: client, client_host: host, assignment, consumer }) {
  const assigned = assignmentText(assignment) || "nothing";
  const names = [instance ?? id, `${client} ${host}`];
  if (!consumer) return [...names, "–", assigned, "–"];
  const revokes = assignmentText(consumer.to_revoke);
  const target = assignmentText(consumer.target) || "nothing";
  return [...names, words.count(consumer.member_epoch), revokes ? `${assigned}, to revoke: ${revokes}` : assigned, target];
}

/** `orders: Stable, assignor uniform, epoch 5, assignment epoch 4, coordinator worker-0` */
export function groupText({ group_id: id, state, protocol, generation, assignment_epoch: epoch, coordinator }) {
  const epochs = epoch === null ? [] : [`epoch ${generation}`, `assignment epoch ${epoch}`];
  return [`${id}: ${state}`, protocol && `assignor ${protocol}`, ...epochs, `coordinator ${coordinator}`].filter(Boolean).join(", ");
}

/** The body of a reset from the form's fields, which are texts. */
export function resetOf({ topic, to, value, partitions }) {
  const body = { topic, to };
  if (value.trim() !== "") body.value = to === "timestamp" ? timeOf(value) : wholeNumber(value, "value");
  const indexes = partitions.split(",").map((each) => each.trim()).filter(Boolean);
  if (indexes.length) body.partitions = indexes.map((each) => wholeNumber(each, "partition"));
  return body;
}

function wholeNumber(text, what) {
  if (!/^-?\d{1,15}$/.test(text.trim())) throw new Error(`${what} must be a whole number`);
  return Number(text);
}

/** Milliseconds since 1970, of those or of a date and time. */
function timeOf(text) {
  const at = /^\s*\d{11,15}\s*$/.test(text) ? Number(text) : Date.parse(text);
  if (Number.isNaN(at)) throw new Error("value must be a time, such as 2026-01-31T12:00:00Z");
  return at;
}

/** `orders-0: 5 → 0` */
export function changeText({ topic, partition, before, after }) {
  return `${topic}-${partition}: ${before === null ? "none" : words.count(before)} → ${words.count(after)}`;
}

export class Plot {
  constructor(size) {
    this.size = size;
    this.line = svg("path", { class: "use" });
    this.root = svg("svg", { class: "line", viewBox: `0 0 ${size.width} ${size.height}`, preserveAspectRatio: "none" });
    set(this.root, { "aria-hidden": true });
    this.root.append(this.line);
  }

  /** Draw values; return the one at the upper edge, and the number of samples that fit. */
  show(values, present) {
    const { path, top, span } = plot(values, present, this.size);
    set(this.line, { d: path });
    return { top, span };
  }
}

/** A table with a head, and its body. */
export function table(columns) {
  const head = element("tr");
  for (const name of columns) {
    const cell = element("th", "", name);
    set(cell, { scope: "col" });
    head.append(cell);
  }
  const body = element("tbody");
  return { root: element("table", "", element("thead", "", head), body), body };
}

/** Rows of texts, which are updated by position. */
export function textRows(body, columns) {
  const make = () => {
    const cells = columns.map((name, index) => {
      const cell = element(index ? "td" : "th");
      set(cell, index ? { "data-label": name } : { scope: "row" });
      return cell;
    });
    return element("tr", "", ...cells);
  };
  const show = (row, { texts }) => texts.forEach((text, index) => write(row.children[index], text));
  return new Keyed(body, { make, show });
}

export class Groups {
  constructor({ list, detail, form, problem }, isVisible) {
    this.isVisible = isVisible;
    this.detail = detail;
    this.form = form;
    this.problem = problem;
    this.chosen = null;
    this.groups = [];
    this.interval = 0;
    this.parts = new WeakMap();
    this.makeList(list);
    this.makeDetail();
    form.addEventListener("submit", (event) => this.reset(event));
    form.addEventListener("change", () => this.fillForm());
    const silent = () => {}; // Another poller reports whether the broker answers.
    this.look = poll("v1/lag", (answer) => this.onAnswer(answer), silent, PERIOD_MS, isVisible);
    this.fillForm();
  }

  makeList(list) {
    const { root, body } = table(COLUMNS);
    this.table = root;
    this.empty = element("p", "empty", "There is no group yet.");
    list.append(root, this.empty);
    this.rows = new Keyed(body, { make: (group) => this.makeRow(group), show: (row, group) => this.fillRow(row, group) });
  }

  makeRow({ group_id: id }) {
    const button = element("button", "entity", id);
    button.type = "button";
    button.addEventListener("click", () => this.choose(id));
    const name = element("th", "", button);
    set(name, { scope: "row" });
    const line = new Plot(SMALL);
    const cells = COLUMNS.slice(1).map((column) => {
      const cell = element("td");
      set(cell, { "data-label": column });
      return cell;
    });
    cells.at(-1).append(line.root);
    const row = element("tr", "", name, ...cells);
    this.parts.set(row, { button, line, cells });
    return row;
  }

  fillRow(row, { group_id: id, state, members, lag, lags }) {
    const { button, line, cells } = this.parts.get(row);
    set(button, { "aria-pressed": id === this.chosen });
    write(cells[0], state);
    write(cells[1], words.count(members));
    write(cells[2], lag === null ? "–" : words.count(lag));
    line.show(lags, lag);
  }

  makeDetail() {
    this.nothing = element("p", "empty", "Click a group to see its members, its assignment and its offsets.");
    this.facts = element("p", "note");
    this.waits = element("ul", "waits");
    this.reasons = new Keyed(this.waits, { make: () => element("li"), show: (item, text) => write(item, text) });
    this.line = new Plot(LARGE);
    this.top = element("span", "plot-top");
    this.since = element("span", "plot-time");
    const figure = element("div", "plot", this.top, this.line.root, this.since, element("span", "plot-time", "now"));
    const members = table(MEMBER_COLUMNS);
    const offsets = table(OFFSET_COLUMNS);
    this.members = textRows(members.body, MEMBER_COLUMNS);
    this.offsets = textRows(offsets.body, OFFSET_COLUMNS);
    this.noMembers = element("p", "empty", "The group has no members.");
    this.about = element("div", "about", this.facts, this.waits, figure, element("h3", "", "Members"), members.root, this.noMembers, element("h3", "", "Offsets"), offsets.root);
    this.membersTable = members.root;
    this.detail.prepend(this.nothing, this.about);
    this.showChosen();
  }

  onAnswer({ interval_ms: interval, groups }) {
    this.interval = interval;
    this.draw(groups);
  }

  draw(groups) {
    this.groups = groups;
    this.rows.update(groups, (group) => group.group_id);
    this.table.hidden = groups.length === 0;
    this.empty.hidden = groups.length > 0;
    this.showChosen();
    this.askDetail();
  }

  choose(id) {
    this.chosen = this.chosen === id ? null : id;
    write(this.problem, "");
    this.members.update([], () => "");
    this.offsets.update([], () => "");
    write(this.facts, "");
    this.reasons.update([], () => "");
    this.draw(this.groups);
  }

  showChosen() {
    const group = this.groups.find((each) => each.group_id === this.chosen);
    this.nothing.hidden = this.chosen !== null;
    this.about.hidden = this.chosen === null;
    this.form.hidden = this.chosen === null;
    if (!group) return;
    const { top, span } = this.line.show(group.lags, group.lag);
    write(this.top, `lag, up to ${words.count(top)} records`);
    write(this.since, words.ago(span * this.interval));
  }

  /** Ask for the selected group; this is repeated with each answer about all groups. */
  async askDetail() {
    const asked = this.chosen;
    if (asked === null) return;
    let group;
    try {
      // Not in the path, from which `..` would be removed.
      group = await ask(`v1/groups/?${new URLSearchParams({ group_id: asked })}`);
    } catch (error) {
      if (asked === this.chosen) write(this.facts, error.message);
      return;
    }
    if (asked === this.chosen) this.fillDetail(group);
  }

  fillDetail(group) {
    const { members, offsets, waits_for: reasons } = group;
    write(this.facts, groupText(group));
    this.reasons.update(reasons, (text) => text);
    this.waits.hidden = reasons.length === 0;
    this.membersTable.hidden = members.length === 0;
    this.noMembers.hidden = members.length > 0;
    this.members.update(
      members.map((member) => ({ key: member.member_id, texts: memberTexts(member) })),
      ({ key }) => key,
    );
    const ordered = [...offsets].sort((one, other) => {
      return one.topic === other.topic ? one.partition - other.partition : one.topic < other.topic ? -1 : 1;
    });
    this.offsets.update(
      ordered.map(({ topic, partition, offset, log_end_offset: end, lag }) => ({
        key: JSON.stringify([topic, partition]),
        texts: [topic, partition, offset, end, lag].map((value) => textOf(value)),
      })),
      ({ key }) => key,
    );
    const topic = this.form.elements.topic;
    if (topic.value === "" && offsets.length) topic.value = offsets[0].topic;
  }

  /** Show the value's field only where a reset takes one. */
  fillForm() {
    const { to, value } = this.form.elements;
    const hints = { offset: "offset", shift: "records, e.g. -10", timestamp: "2026-01-31T12:00:00Z" };
    value.hidden = !(to.value in hints);
    if (value.hidden) value.value = "";
    set(value, { placeholder: hints[to.value] ?? null });
  }

  /** Reset offsets, or show what a reset would change. */
  async reset(event) {
    event.preventDefault();
    const isPreview = event.submitter?.value === "preview";
    let text;
    try {
      const body = { ...resetOf(Object.fromEntries(new FormData(this.form))), group_id: this.chosen };
      if (isPreview) body.dry_run = true;
      const options = { method: "POST", body: JSON.stringify(body) };
      const { changes } = await ask("v1/offsets/", options);
      const texts = changes.map(changeText);
      text = [isPreview ? "It would change:" : "Changed:", ...texts].join("\n");
    } catch (error) {
      text = error.message;
    }
    write(this.problem, text);
    this.look();
  }
}

function textOf(value) {
  if (value === null) return "–";
  return typeof value === "number" ? words.count(value) : value;
}
