// Draws the path of a connection: listeners, acceptor, queues, processors, and the wires between them.
// Owns the positions of those parts; it must never know how a response is read. Invariant: everything
// that reacts to the pointer can be reached by keyboard, with the same text.

import { element, Keyed, Meter, set, svg, write } from "./dom.js";
import { FLIGHT_MS, Flights } from "./flights.js";
import { Room } from "./room.js";
import * as words from "./words.js";

/** Waiting or delayed connections drawn at one listener; of more, the number is shown. */
const WAITING_MARKS_MAX = 18;

const RADIUS = 46;
const RING = 2 * Math.PI * RADIUS;

/** Points of a bent wire. */
const BENDS = 18;

export class Stage {
  constructor({ choose, point }) {
    this.root = document.getElementById("stage");
    this.wires = document.getElementById("wires");
    this.flights = new Flights(document.getElementById("flights"));
    this.handlers = { choose, point };
    this.cards = new Map();
    this.rooms = new Map();
    this.acceptor = new Acceptor(document.getElementById("acceptor"));
    this.listeners = new Keyed(document.getElementById("listeners"), {
      make: (listener) => this.makeCard(listener),
      show: (_, listener) => this.cards.get(listener.listener).show(listener),
      drop: (card) => this.forget(card),
    });
    this.processors = new Keyed(document.getElementById("processors"), {
      make: (processor) => this.makeRoom(processor),
      show: (_, processor) => this.rooms.get(processor.name).show(processor, this.context),
      drop: (lane) => this.forget(lane),
    });
    this.shape = "";
    new ResizeObserver(() => {
      this.shape = "";
      if (this.scene) this.draw({ ...this.scene, flights: [] }, this.isShown);
    }).observe(this.root);
  }

  makeCard({ listener }) {
    const card = new Card(listener);
    this.cards.set(listener, card);
    return card.root;
  }

  makeRoom({ name }) {
    const room = new Room(name, this.handlers);
    this.rooms.set(name, room);
    return room.root;
  }

  /** A restarted broker may have other parts. */
  forget(part) {
    this.cards.delete(part.dataset.listener);
    this.rooms.delete(part.dataset.processor);
    part.remove();
  }

  draw(scene, isShown) {
    this.scene = scene;
    this.isShown = isShown;
    const sharded = scene.mode === "sharded";
    this.root.dataset.mode = scene.mode;
    document.getElementById("acceptor-column").hidden = sharded;
    document.getElementById("queues-head").hidden = sharded;
    this.context = { delays: this.delays(scene), isShown, sharded };
    this.acceptor.show(scene);
    this.listeners.update(scene.listeners, (each) => each.listener);
    this.processors.update(scene.processors, (each) => each.name);
    this.wire(scene);
    for (const flight of scene.flights) this.launch(flight);
  }

  /** When the marks of moving connections appear: as they arrive. */
  delays(scene) {
    const landing = this.flights.moves ? FLIGHT_MS : 0;
    const arrivals = scene.flights.filter((flight) => flight.kind === "arrival");
    return new Map(arrivals.map(({ key, delay }) => [key, delay + landing]));
  }

  setCursor(processor, key) {
    for (const [name, room] of this.rooms) room.setCursor(name === processor ? key : null);
  }

  // Wires and ways -------------------------------------------------------------------------------

  /** A point of an element's edge, where wires leave or enter it, on the stage. */
  port(target, side) {
    const stage = this.root.getBoundingClientRect();
    const box = target.getBoundingClientRect();
    const inWay = this.isNarrow ? { y: side, x: 0.5 } : { x: side, y: 0.5 };
    return {
      x: box.left - stage.left + box.width * inWay.x,
      y: box.top - stage.top + box.height * inWay.y,
    };
  }

  get isNarrow() {
    return getComputedStyle(this.root).getPropertyValue("--narrow").trim() === "1";
  }

  wire(scene) {
    const { width, height } = this.root.getBoundingClientRect();
    const names = [...scene.listeners.map((each) => each.listener), ...this.rooms.keys()];
    const shape = JSON.stringify([width, height, scene.mode, names]);
    if (shape === this.shape) return;
    this.shape = shape;
    this.flights.resize(width, height);
    set(this.wires, { viewBox: `0 0 ${width} ${height}`, width, height });
    const lines = new Set(this.ways(scene).map((way) => bent(way, this.isNarrow).map(at).join(" ")));
    this.wires.replaceChildren(...[...lines].map((points) => svg("polyline", { points })));
  }

  ways(scene) {
    const rooms = [...this.rooms.values()];
    const within = rooms.map((room) => [this.port(room.queue, 1), this.port(room.box, 0)]);
    const outside = scene.listeners.flatMap(({ listener }) => rooms.map((room) => this.wayTo(listener, room)));
    return [...outside.flat(), ...within];
  }

  /** From a listener to a processor's queue, by way of the acceptor where there is one. */
  wayTo(listener, room) {
    // Wires between cards below each other would cross the cards.
    const card = this.cards.get(listener).root;
    const start = this.port(this.isNarrow ? card.parentElement : card, 1);
    const door = this.port(room.queue, 0);
    if (this.scene.mode === "sharded") return [[start, door]];
    const [enter, leave] = [this.port(this.acceptor.root, 0), this.port(this.acceptor.root, 1)];
    return [[start, enter], [leave, door]];
  }

  launch({ kind, key, listener, processor, delay }) {
    if (!this.cards.has(listener)) return;
    const room = this.rooms.get(processor);
    if (kind === "rejection") {
      const [first] = this.wayTo(listener, room ?? this.rooms.values().next().value);
      this.flights.launch(bent(first, this.isNarrow), delay, "fall");
      return;
    }
    if (!room) return;
    const stage = this.root.getBoundingClientRect();
    const seat = room.middleOf(key);
    const through = [this.port(room.queue, 1), { x: seat.x - stage.left, y: seat.y - stage.top }];
    const way = this.wayTo(listener, room).flatMap((part) => bent(part, this.isNarrow));
    this.flights.launch([...way, ...through], delay, kind === "visit" ? "dissolve" : "land");
  }
}

/** A smooth path between two ports, as points: horizontal at both ends. */
function bent([from, to], isNarrow) {
  return Array.from({ length: BENDS + 1 }, (_, index) => {
    const part = index / BENDS;
    const eased = part * part * (3 - 2 * part);
    const [across, down] = isNarrow ? [eased, part] : [part, eased];
    return { x: from.x + (to.x - from.x) * across, y: from.y + (to.y - from.y) * down };
  });
}

function at({ x, y }) {
  return `${x.toFixed(1)},${y.toFixed(1)}`;
}

class Acceptor {
  constructor(root) {
    this.root = root;
    const ring = svg("svg", { viewBox: "0 0 100 100", "aria-hidden": "true" });
    this.arc = svg("circle", { class: "blocked-arc", cx: 50, cy: 50, r: RADIUS, "stroke-dasharray": RING });
    ring.append(svg("circle", { class: "ring", cx: 50, cy: 50, r: RADIUS }), this.arc);
    this.share = element("strong");
    this.word = element("span");
    root.append(ring, element("p", "", this.share, this.word));
  }

  show({ blocked, listeners }) {
    this.root.classList.toggle("blocked", blocked > 0);
    set(this.arc, { "stroke-dashoffset": RING * (1 - Math.min(1, blocked)) });
    write(this.share, blocked > 0 ? words.share(blocked) : "open");
    write(this.word, blocked > 0 ? "blocked" : "not blocked");
    const who = listeners.filter((each) => each.blocked_share > 0).map((each) => each.listener);
    this.root.title = who.length ? `Connections waited recently at ${who.join(", ")}` : "";
  }
}

class Card {
  constructor(name) {
    this.endpoint = element("span", "endpoint");
    this.badge = element("span", "badge", "protected");
    this.badge.title = "The inter-broker listener: only its own limit applies.";
    this.meters = ["connections", "new per second", "blocked"].map((each) => new Meter(each));
    this.marks = element("span", "waiting-marks");
    this.markList = new Keyed(this.marks, {
      make: () => element("i"),
      show: (mark, { held }) => (mark.className = held ? "key held" : "key waiting"),
    });
    this.text = element("span", "waiting-text");
    this.meters[2].root.classList.add("alarming");
    const head = element("header", "", element("h3", "", name), this.badge, this.endpoint);
    const queueing = element("p", "queueing", this.marks, this.text);
    this.root = element("article", "card", head, ...this.meters.map((each) => each.root), queueing);
    this.root.dataset.listener = name;
  }

  show(listener) {
    const [connections, rate, blocked] = this.meters;
    write(this.endpoint, `${listener.host}:${listener.port}`);
    this.badge.hidden = !listener.protected;
    const { limit, rate_limit: rateLimit } = listener;
    connections.show(
      words.against(listener.connections, limit),
      words.fullness(listener.connections, limit),
      limit !== null,
    );
    rate.show(words.rate(listener.rate, rateLimit), words.fullness(listener.rate, rateLimit), rateLimit !== null);
    blocked.show(words.share(listener.blocked_share), listener.blocked_share);
    this.queue(listener);
  }

  queue({ waiting, held }) {
    this.root.classList.toggle("queues", waiting + held > 0);
    const drawn = Array.from({ length: Math.min(waiting + held, WAITING_MARKS_MAX) }, (_, index) => ({
      index,
      held: index >= waiting,
    }));
    this.markList.update(drawn, ({ index }) => index);
    const parts = [waiting && `${words.count(waiting)} waiting`, held && `${words.count(held)} held`];
    write(this.text, parts.filter(Boolean).join(", ") || "no connection waits");
  }
}
