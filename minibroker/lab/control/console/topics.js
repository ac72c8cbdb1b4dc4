// Draws topics: the list with records and sizes, and the partitions of a selected one. Owns that view and
// when it asks the broker; messages.js has the records of the selected topic. Invariant: it asks only
// while the view is visible, and names and configs are set as text.

import { element, Keyed, set, write } from "./dom.js";
import { table, textRows } from "./groups.js";
import { ask, poll } from "./polling.js";
import * as words from "./words.js";

const PERIOD_MS = 2000;
const COLUMNS = ["topic", "partitions", "records", "size"];
const PARTITION_COLUMNS = ["partition", "start", "end", "size", "owner"];

/** Rows that are drawn at most; the filter finds the others. */
export const SHOWN_MAX = 200;

/** The topics whose name contains a text, those with `internal` only if that is asked for. */
export function filtered(topics, { name = "", internal = false }) {
  const part = name.trim().toLowerCase();
  return topics.filter((each) => (internal || !each.internal) && each.name.toLowerCase().includes(part));
}

export class Topics {
  constructor({ filter, list, detail }, { onChosen, onPartitions }, isVisible) {
    this.filter = filter;
    this.onChosen = onChosen;
    this.onPartitions = onPartitions;
    this.topics = [];
    this.chosen = null;
    this.parts = new WeakMap();
    this.makeList(list);
    this.makeDetail(detail);
    filter.addEventListener("input", () => this.draw());
    filter.addEventListener("change", () => this.draw());
    filter.addEventListener("submit", (event) => event.preventDefault());
    const silent = () => {}; // Another poller reports whether the broker answers.
    this.look = poll("v1/sizes", (answer) => this.onAnswer(answer), silent, PERIOD_MS, isVisible);
  }

  makeList(list) {
    const { root, body } = table(COLUMNS);
    this.table = root;
    this.empty = element("p", "empty");
    this.more = element("p", "more");
    list.append(root, this.empty, this.more);
    this.rows = new Keyed(body, { make: (topic) => this.makeRow(topic), show: (row, topic) => this.fillRow(row, topic) });
  }

  makeRow({ name }) {
    const button = element("button", "entity", name);
    button.type = "button";
    button.addEventListener("click", () => this.choose(name));
    const head = element("th", "", button);
    set(head, { scope: "row" });
    const cells = COLUMNS.slice(1).map(() => element("td"));
    const row = element("tr", "", head, ...cells);
    this.parts.set(row, { button, cells });
    return row;
  }

  fillRow(row, { name, partitions, records, size_bytes: size }) {
    const { button, cells } = this.parts.get(row);
    set(button, { "aria-pressed": name === this.chosen });
    write(cells[0], words.count(partitions));
    write(cells[1], records === null ? "–" : words.count(records));
    write(cells[2], size === null ? "–" : words.bytes(size));
  }

  makeDetail(detail) {
    this.nothing = element("p", "empty", "Click a topic to see its partitions and messages.");
    this.facts = element("p", "note");
    const { root, body } = table(PARTITION_COLUMNS);
    this.partitions = textRows(body, PARTITION_COLUMNS);
    this.configs = element("p", "note");
    this.about = element("div", "about", this.facts, root, this.configs);
    detail.append(this.nothing, this.about);
    this.about.hidden = true;
  }

  onAnswer({ topics }) {
    this.topics = topics;
    this.draw();
    this.askDetail();
  }

  draw() {
    const { name, internal } = this.filter.elements;
    const topics = filtered(this.topics, { name: name.value, internal: internal.checked });
    this.rows.update(topics.slice(0, SHOWN_MAX), (topic) => topic.name);
    this.table.hidden = topics.length === 0;
    write(this.empty, topics.length ? "" : this.topics.length ? "No topic matches." : "There is no topic yet.");
    const left = topics.length - SHOWN_MAX;
    write(this.more, left > 0 ? `and ${words.count(left)} more` : "");
  }

  choose(name) {
    this.chosen = this.chosen === name ? null : name;
    this.nothing.hidden = this.chosen !== null;
    this.about.hidden = this.chosen === null;
    write(this.facts, this.chosen ?? "");
    write(this.configs, "");
    this.partitions.update([], () => "");
    this.draw();
    this.onChosen(this.chosen, this.topics.find((each) => each.name === name)?.partitions ?? 0);
    this.askDetail();
  }

  /** Ask for the selected topic; this is repeated with each answer about all topics. */
  async askDetail() {
    const asked = this.chosen;
    if (asked === null) return;
    let topic;
    try {
      topic = await ask(`v1/topics/${encodeURIComponent(asked)}`);
    } catch (error) {
      if (asked === this.chosen) write(this.facts, error.message);
      return;
    }
    if (asked !== this.chosen) return;
    this.onPartitions(topic.partitions.length);
    write(this.facts, `${asked}, id ${topic.topic_id}`);
    this.partitions.update(
      topic.partitions.map((each) => ({
        key: each.partition,
        texts: [
          String(each.partition),
          words.count(each.log_start_offset),
          words.count(each.log_end_offset),
          words.bytes(each.size_bytes),
          each.owner,
        ],
      })),
      ({ key }) => key,
    );
    const configs = Object.entries(topic.configs).map(([name, value]) => `${name}=${value}`);
    write(this.configs, configs.join(", "));
  }
}
