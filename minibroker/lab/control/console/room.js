// One processor: its queue with every slot, and a mark for each of its connections. Owns those
// elements and finding a mark by point or by key; layout.js decides their positions. Invariant:
// there is exactly one mark for each mark of the scene, in addition to those that fade out.

import { element, Keyed, set, svg, write } from "./dom.js";
import { pack, place, seatAt } from "./layout.js";
import * as words from "./words.js";

/** Above this number of marks none is animated, because each frame would draw all of them. */
const LIVELY_MAX = 100;

/** Duration of a mark's fade-out, as in stage.css. */
const FADE_MS = 420;

const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

let serial = 0;

export class Room {
  constructor(name, { choose, point }) {
    this.name = name;
    this.choose = choose;
    this.point = point;
    this.bySeat = new Map();
    this.byKey = new Map();
    this.cursor = null;
    this.slots = element("div", "slots");
    this.slotList = new Keyed(this.slots, {
      make: () => element("i", "slot"),
      show: (slot, { used }) => slot.classList.toggle("used", used),
    });
    this.queueText = element("span", "slots-text");
    this.queue = element("div", "queue", this.slots, this.queueText);
    set(this.queue, { role: "img" });
    this.drawing = svg("svg", { class: "marks", tabindex: 0, role: "listbox" });
    this.markList = new Keyed(this.drawing, {
      make: (mark) => this.makeMark(mark),
      show: (shape, mark) => this.showMark(shape, mark),
      drop: (shape) => (this.crowded ? shape.remove() : fade(shape)),
    });
    this.count = element("span", "room-count");
    this.scale = element("span", "room-scale");
    const head = element("header", "", element("h3", "", name), this.scale, this.count);
    this.place = element("div", "marks-place", this.drawing);
    this.box = element("div", "room", head, this.place);
    this.root = element("article", "lane", this.queue, this.box);
    this.root.dataset.processor = name;
    this.listen();
  }

  listen() {
    this.drawing.addEventListener("pointermove", (event) => this.point(this.under(event), event));
    this.drawing.addEventListener("pointerleave", () => this.point(null));
    this.drawing.addEventListener("click", (event) => {
      const mark = this.under(event);
      if (mark) this.moveTo(mark);
    });
    this.drawing.addEventListener("keydown", (event) => this.key(event));
  }

  show(processor, { delays, isShown, sharded }) {
    this.delays = delays;
    this.isShown = isShown;
    this.showQueue(processor, sharded);
    write(this.count, words.count(processor.count));
    write(this.scale, processor.factor > 1 ? `each mark is ${words.count(processor.factor)}` : "");
    this.factor = processor.factor;
    const before = this.markList.children.size;
    this.crowded = Math.max(before, processor.marks.length) > LIVELY_MAX;
    this.drawing.classList.toggle("crowded", this.crowded);
    this.fit(processor.seats);
    set(this.drawing, { "aria-label": `${this.name}: ${words.connections(processor.count)}` });
    this.bySeat = new Map(processor.marks.map((mark) => [mark.seat, mark]));
    this.byKey = new Map(processor.marks.map((mark) => [mark.key, mark]));
    this.markList.update(processor.marks, (mark) => mark.key, false);
    this.showCursor();
  }

  /** Choose a pitch by the available height; request more only if none fits. */
  fit(seats) {
    this.place.style.minHeight = "";
    const { width, height } = this.drawing.getBoundingClientRect();
    this.packing = pack(seats, width, height);
    if (this.packing.height > height) this.place.style.minHeight = `${this.packing.height}px`;
  }

  showQueue({ slots, used }, sharded) {
    this.root.classList.toggle("sharded", sharded);
    const all = sharded ? 0 : slots;
    // The first slot is the one next to the processor.
    const list = Array.from({ length: all }, (_, index) => ({ index, used: all - index <= used }));
    this.slotList.update(list, ({ index }) => index);
    write(this.queueText, sharded ? "accepts" : used ? `${used} of ${slots}` : "");
    const label = `${words.count(used)} of ${slots} slots used`;
    set(this.queue, { "aria-label": sharded ? "accepts its own connections" : label });
  }

  makeMark({ key }) {
    const shape = svg("rect", { role: "option", id: `mark-${(serial += 1)}` });
    const delay = this.delays.get(key);
    if (delay !== undefined) {
      shape.style.animationDelay = `${delay}ms`;
      shape.classList.add("arriving");
    }
    return shape;
  }

  showMark(shape, mark) {
    const { pitch } = this.packing;
    const size = Math.max(5, Math.round(pitch * 0.6));
    const { x, y } = place(mark.seat, this.packing);
    set(shape, {
      x: x - size / 2,
      y: y - size / 2,
      width: size,
      height: size,
      rx: this.factor > 1 ? 1.5 : size / 2,
      "aria-label": words.markLabel(mark),
      "aria-selected": mark.key === this.cursor,
    });
    if (shape.dataset.look !== mark.look) shape.dataset.look = mark.look;
    shape.classList.toggle("partly", mark.count < this.factor / 2);
    shape.classList.toggle("dimmed", !this.isShown(mark));
    shape.classList.toggle("chosen", mark.key === this.cursor);
  }

  /** The middle of a mark, or of the room, in the window's pixels. */
  middleOf(key) {
    const box = this.drawing.getBoundingClientRect();
    const mark = this.byKey.get(key);
    if (!mark) return { x: box.left + Math.min(60, box.width / 2), y: box.top + box.height / 2 };
    const { x, y } = place(mark.seat, this.packing);
    return { x: box.left + x, y: box.top + y };
  }

  under(event) {
    const box = this.drawing.getBoundingClientRect();
    if (!this.packing) return null;
    const seat = seatAt(event.clientX - box.left, event.clientY - box.top, this.packing);
    return this.bySeat.get(seat) ?? null;
  }

  key(event) {
    const order = [...this.bySeat.keys()].sort((one, other) => one - other);
    if (!order.length) return;
    const { columns } = this.packing;
    const step = { ...STEPS, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const from = this.byKey.get(this.cursor)?.seat;
    let wanted = from === undefined ? order[0] : from + step;
    wanted = Math.max(order[0], Math.min(order.at(-1), wanted));
    // Empty seats are skipped in the direction of the step.
    const at = step < 0 ? order.findLast((seat) => seat <= wanted) : order.find((seat) => seat >= wanted);
    this.moveTo(this.bySeat.get(at));
  }

  moveTo(mark) {
    this.choose(mark, this.name);
  }

  /** Move the cursor to a mark, or to none. */
  setCursor(key) {
    const old = this.markList.children.get(this.cursor);
    old?.classList.remove("chosen");
    if (old) set(old, { "aria-selected": false });
    this.cursor = key;
    this.showCursor();
  }

  showCursor() {
    const shape = this.markList.children.get(this.cursor);
    shape?.classList.add("chosen");
    if (shape) set(shape, { "aria-selected": true });
    set(this.drawing, { "aria-activedescendant": shape?.id ?? null });
  }
}

/** Fade a mark out, then remove it. */
function fade(shape) {
  set(shape, { role: "presentation", id: null });
  shape.classList.remove("arriving", "chosen");
  shape.classList.add("closing");
  setTimeout(() => shape.remove(), FADE_MS);
}
