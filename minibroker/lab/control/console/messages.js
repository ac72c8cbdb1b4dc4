// Draws the records of the selected topic: a page of them, one in full, and the form to produce one. Owns
// these panels and when they ask the broker; records.js interprets contents. Invariant: records are read
// only on request, without a group, and their contents are set as text.

import { element, Keyed, set, write } from "./dom.js";
import { table } from "./groups.js";
import { ask } from "./polling.js";
import {
  entered,
  following,
  formsOf,
  matches,
  PAGE,
  positionsOf,
  previewOf,
  queryOf,
  recordOf,
  SEARCHED_MAX,
} from "./records.js";
import * as words from "./words.js";

const COLUMNS = ["partition", "offset", "time (UTC)", "key", "value"];

/** Records of one request of a search. */
const SEARCH_PAGE = 1000;

/** `2026-01-31 12:00:00.123` */
export function timeText(timestamp) {
  const at = new Date(timestamp);
  return Number.isNaN(at.getTime()) ? String(timestamp) : at.toISOString().replace("T", " ").replace("Z", "");
}

export class Messages {
  constructor({ filter, more, list, detail, produce, answer }) {
    this.filter = filter;
    this.more = more;
    this.detail = detail;
    this.produce = produce;
    this.answer = answer;
    this.topic = null;
    this.partitions = 0;
    this.version = 0;
    this.makeList(list);
    filter.addEventListener("submit", (event) => this.onSubmit(event));
    filter.addEventListener("change", () => this.showValueField());
    more.addEventListener("click", () => this.read(this.next));
    produce.addEventListener("submit", (event) => this.send(event));
    this.choose(null, 0);
  }

  makeList(list) {
    const { root, body } = table(COLUMNS);
    this.table = root;
    this.note = element("p", "note");
    set(this.note, { role: "status" });
    list.append(this.note, root);
    this.rows = new Keyed(body, { make: (record) => this.makeRow(record), show: (row, record) => this.fillRow(row, record) });
  }

  makeRow(record) {
    const button = element("button", "entity", String(record.offset));
    button.type = "button";
    set(button, { "aria-label": `offset ${record.offset} of partition ${record.partition}` });
    button.addEventListener("click", () => this.select(record));
    const texts = [timeText(record.timestamp), previewOf(record.key), previewOf(record.value)];
    const partition = element("th", "", String(record.partition));
    set(partition, { scope: "row" });
    return element("tr", "", partition, element("td", "", button), ...texts.map((text, index) => element("td", index ? "content" : "time", text)));
  }

  fillRow(row, record) {
    set(row.querySelector("button"), { "aria-pressed": record === this.chosen });
  }

  /** Show the records of another topic, or of none. */
  choose(topic, partitions) {
    this.topic = topic;
    this.partitions = partitions;
    this.filter.hidden = this.produce.hidden = topic === null;
    for (const form of [this.filter, this.produce]) {
      const options = Array.from({ length: partitions }, (_, index) => new Option(`partition ${index}`, index));
      form.elements.partition.replaceChildren(new Option(form === this.filter ? "all partitions" : "any partition", ""), ...options);
    }
    write(this.answer, "");
    this.showValueField();
    this.records = [];
    this.select(null);
    this.table.hidden = this.more.hidden = true;
    write(this.note, topic === null ? "Click a topic to read its messages." : "");
    if (topic !== null) this.begin();
  }

  /** Offer partitions that were added to the selected topic. */
  grow(partitions) {
    for (; this.partitions < partitions; this.partitions += 1) {
      for (const form of [this.filter, this.produce]) {
        form.elements.partition.append(new Option(`partition ${this.partitions}`, this.partitions));
      }
    }
  }

  showValueField() {
    const { from, value } = this.filter.elements;
    const hints = { offset: "offset", since: "2026-01-31T12:00:00Z" };
    value.hidden = !(from.value in hints);
    set(value, { placeholder: hints[from.value] ?? null });
  }

  onSubmit(event) {
    event.preventDefault();
    this.begin();
  }

  /** Read the first page that the form asks for. */
  async begin() {
    const fields = Object.fromEntries(new FormData(this.filter));
    let query;
    try {
      query = fields.from === "since" ? await this.since(fields) : queryOf(fields, this.partitions);
    } catch (error) {
      this.version += 1;
      write(this.note, error.message);
      return;
    }
    this.read(query);
  }

  /** The query from a time on. A reset that is not done tells the offsets of a time. */
  async since({ partition, value }) {
    const time = Date.parse(value);
    if (Number.isNaN(time)) throw new Error("enter a time, such as 2026-01-31T12:00:00Z");
    const reset = { topic: this.topic, to: "timestamp", value: time, dry_run: true };
    if (partition !== "") reset.partitions = [Number(partition)];
    const { changes } = await ask("v1/offsets/console", { method: "POST", body: JSON.stringify(reset) });
    return { limit: PAGE, positions: positionsOf(changes.map((each) => [each.partition, each.after])) };
  }

  /** Read a page; a search reads on until it has a page of matches. */
  async read(query) {
    const version = ++this.version;
    const search = this.filter.elements.search.value;
    const found = [];
    let searched = 0;
    let answer = null;
    let problem = null;
    try {
      do {
        answer = await this.ask(search && answer ? following(answer, SEARCH_PAGE) : query);
        if (version !== this.version) return; // Something else was asked for in the meantime.
        searched += answer.records.length;
        found.push(...answer.records.map(recordOf).filter((record) => matches(record, search)));
        if (search) write(this.note, `searching, ${words.count(searched)} messages so far`);
      } while (search && answer.has_more && found.length < PAGE && searched < SEARCHED_MAX);
    } catch (error) {
      if (version !== this.version) return;
      problem = error.message;
    }
    this.show(found, problem ?? summary(search, found.length, searched, answer));
    this.more.hidden = answer === null || !answer.has_more;
    if (answer !== null) this.next = following(answer, PAGE);
  }

  ask(query) {
    return ask(`v1/topics/${encodeURIComponent(this.topic)}/records?${new URLSearchParams(query)}`);
  }

  show(records, text) {
    this.records = records;
    this.select(null);
    this.table.hidden = records.length === 0;
    write(this.note, text);
  }

  draw() {
    this.rows.update(this.records, (record) => record);
  }

  select(record) {
    this.chosen = record !== null && this.chosen !== record ? record : null;
    this.draw();
    if (this.chosen === null) {
      this.detail.replaceChildren(element("p", "empty", "Click the offset of a message to see its key, headers and value."));
      return;
    }
    const facts = element("dl");
    const { partition, offset, timestamp, key, value, headers } = record;
    for (const [name, text] of [["partition", partition], ["offset", offset], ["time", `${timeText(timestamp)} UTC`]]) {
      facts.append(element("dt", "", name), element("dd", "", String(text)));
    }
    const parts = [content("Key", key), ...headers.map((each) => content(`Header ${each.name}`, each.value)), content("Value", value)];
    this.detail.replaceChildren(facts, ...parts);
    this.detail.closest("section").scrollIntoView({ block: "nearest" });
  }

  /** Produce the record of the form. */
  async send(event) {
    event.preventDefault();
    const fields = Object.fromEntries(new FormData(this.produce));
    let text;
    try {
      const body = JSON.stringify({ records: [entered(fields)] });
      const [{ partition, offset }] = (await ask(`v1/topics/${encodeURIComponent(this.topic)}/records`, { method: "POST", body })).records;
      text = `Produced: offset ${words.count(offset)} of partition ${partition}`;
      this.begin();
    } catch (error) {
      text = error.message;
    }
    write(this.answer, text);
  }
}

function summary(search, found, searched, { has_more: hasMore }) {
  if (search) return `${words.count(found)} of ${words.count(searched)} messages match${hasMore ? "; there are more" : ""}`;
  if (found === 0) return "There are no messages here.";
  return `${words.count(found)} message${found === 1 ? "" : "s"}${hasMore ? "; there are more" : ""}`;
}

/** Bytes with a heading, a button for each form, and the most readable form. */
function content(heading, bytes) {
  const title = element("h3", "", heading);
  if (bytes === null) return element("div", "", title, element("p", "note", "null"));
  const shown = element("pre", "frame");
  const forms = formsOf(bytes);
  const buttons = forms.map(([name, text]) => {
    const button = element("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => show(button, text));
    return button;
  });
  function show(chosen, text) {
    for (const button of buttons) set(button, { "aria-pressed": button === chosen });
    write(shown, text);
  }
  show(buttons[0], forms[0][1]);
  const size = element("span", "note", words.bytes(bytes.length));
  return element("div", "", title, element("div", "forms", ...buttons, size), shown);
}
