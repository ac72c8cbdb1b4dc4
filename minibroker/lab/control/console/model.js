// Derives a scene from two successive responses of the broker: new, closed, short-lived and rejected
// connections. Pure: it must never know the page, a clock or the network. Invariant: the result
// depends only on the response and on the seats and the sequence number of the previous scene. The
// parts are named as in KIP-402.

import { factorFor, seat } from "./layout.js";

/** Events of one response that are animated, at most; of more, a sample is. */
export const FLIGHTS_MAX = 60;

/** Animations of one response are spread over this time, as the events were. */
export const SPREAD_MS = 250;

/** A connection that was used within this time is drawn as active. */
export const FRESH_MS = 1500;

/** Older events are not animated, for example when the page becomes visible again. */
export const RECENT_MS = 1500;

/** The scene before the first response. */
export const NOTHING = Object.freeze({ seq: null, seatings: new Map(), homes: new Map() });

/** The scene after `answer`, given the previous scene. */
export function advance(before, answer) {
  const known = new Map();
  const seatings = new Map();
  const processors = answer.processors.map((each) => {
    const keys = each.connections.map((connection) => connection.connection_id);
    const seating = seat(before.seatings.get(each.processor)?.seats ?? new Map(), keys);
    seatings.set(each.processor, seating);
    for (const connection of each.connections) {
      known.set(connection.connection_id, { ...connection, processor: each.processor });
    }
    return room(each, seating, answer.processors.length);
  });
  const homes = homesOf(answer);
  return {
    mode: answer.mode,
    totals: totals(answer),
    listeners: answer.listeners,
    blocked: Math.max(0, ...answer.listeners.map((listener) => listener.blocked_share)),
    processors,
    unlisted: processors.some((each) => each.count > each.named),
    addresses: answer.addresses,
    addressesTotal: answer.addresses_total,
    rejections: gather(answer.rejections),
    warnings: answer.unserved.map(warningOf),
    connections: known,
    flights: flights(before, answer, homes),
    homes,
    seatings,
    seq: newestOf(answer),
  };
}

function totals({ total, limit, rate, rate_limit }) {
  return { connections: total, limit, rate, rateLimit: rate_limit };
}

// Processors -------------------------------------------------------------------------------------

function room(processor, seating, processors) {
  const { connections, connections_total: count } = processor;
  // The broker lists only the oldest connections; the others are drawn after them, without names.
  const unlisted = count - connections.length;
  const factor = factorFor(seating.extent + unlisted, processors);
  const listed = Math.ceil(seating.extent / factor);
  const marks = factor === 1 ? singles(processor, seating) : blocks(processor, seating, factor);
  return {
    name: processor.processor,
    slots: processor.slots_total,
    used: processor.slots_used,
    count,
    named: connections.length,
    factor,
    seats: listed + Math.ceil(unlisted / factor),
    marks: [...marks, ...unnamed(unlisted, listed, factor)],
  };
}

function singles(processor, { seats }) {
  return processor.connections.map((connection) => {
    const key = connection.connection_id;
    return { key, seat: seats.get(key), look: lookOf(connection), count: 1, members: [connection] };
  });
}

function blocks(processor, { seats }, factor) {
  const found = new Map();
  for (const connection of processor.connections) {
    const at = Math.floor(seats.get(connection.connection_id) / factor);
    if (!found.has(at)) found.set(at, []);
    found.get(at).push(connection);
  }
  return [...found].map(([at, members]) => ({
    key: `${factor} from ${at * factor}`,
    seat: at,
    look: commonest(members.map(lookOf)),
    count: members.length,
    members,
  }));
}

function unnamed(unlisted, first, factor) {
  return Array.from({ length: Math.ceil(unlisted / factor) }, (_, index) => ({
    key: `${factor} unnamed, number ${index}`,
    seat: first + index,
    look: "quiet",
    count: Math.min(factor, unlisted - index * factor),
    members: [],
  }));
}

/** How a connection is drawn: `busy` with a request in flight, `fresh`, or `quiet`. */
export function lookOf(connection) {
  if (connection.in_flight !== null) return "busy";
  return connection.idle_ms < FRESH_MS ? "fresh" : "quiet";
}

function commonest(looks) {
  const counts = { busy: 0, fresh: 0, quiet: 0 };
  for (const look of looks) counts[look] += 1;
  return Object.keys(counts).reduce((best, look) => (counts[look] > counts[best] ? look : best));
}

// Flights ----------------------------------------------------------------------------------------

function flights(before, answer, homes) {
  if (before.seq === null) return [];
  // A restarted broker counts from the beginning.
  const since = newestOf(answer) < before.seq ? -1 : before.seq;
  const recent = answer.connection_events.filter(({ seq, ago_ms: ago }) => seq > since && ago <= RECENT_MS);
  const found = recent.map((each) => flightOf(each, before.homes, homes)).filter(Boolean);
  const seen = new Set(found.map((flight) => flight.key));
  for (const { processor, connections, connections_total: total } of answer.processors) {
    // If not all are listed, a connection that is new in the list need not be new.
    if (total > connections.length) continue;
    for (const connection of connections) {
      const { connection_id: key, listener, age_ms: age } = connection;
      if (seen.has(key) || age > RECENT_MS || before.homes.has(nameOf(connection))) continue;
      found.push({ kind: "arrival", key, listener, processor, delay: 0 });
    }
  }
  return sample(found, FLIGHTS_MAX);
}

function newestOf({ connection_events: events }) {
  return events.at(-1)?.seq ?? -1;
}

/** The key that identifies a connection in events and in lists. */
function nameOf({ number, client_address: address }) {
  return `${number} ${address}`;
}

/** Seats by key. */
function homesOf({ processors }) {
  const homes = new Map();
  for (const { processor, connections } of processors) {
    for (const connection of connections) {
      homes.set(nameOf(connection), { processor, key: connection.connection_id });
    }
  }
  return homes;
}

function flightOf(event, homesBefore, homes) {
  const { kind, listener, processor, ago_ms: ago } = event;
  const delay = Math.max(0, SPREAD_MS - ago);
  if (kind === "refused") return { kind: "rejection", key: null, listener, processor, delay };
  const name = nameOf(event);
  // Its event may be reported after it was listed.
  if (kind !== "handed" || homesBefore.has(name)) return null;
  const home = homes.get(name);
  return home
    ? { kind: "arrival", listener, delay, ...home }
    : { kind: "visit", key: null, listener, processor, delay };
}

/** At most `most` items, chosen at even distances. */
export function sample(items, most) {
  if (items.length <= most) return items;
  return Array.from({ length: most }, (_, index) => items[Math.floor((index * items.length) / most)]);
}

// Rejections -------------------------------------------------------------------------------------

/** Groups rejections by address, listener and reason, newest first. */
export function gather(rejections) {
  const found = new Map();
  for (const rejection of rejections) {
    const ip = ipOf(rejection.client_address);
    const key = `${rejection.reason} ${rejection.listener} ${ip}`;
    const same = found.get(key);
    if (same) same.times += 1;
    else found.set(key, { key, ip, times: 1, ...rejection });
  }
  return [...found.values()];
}

/** The warning about a client that requests a protocol that is not served. */
export function warningOf(client) {
  const { client_host: host, client_id: id, software_name: name, software_version: version } = client;
  const { protocol, advice, requests: times, ago_ms: ago } = client;
  const about = [id, name && `${name} ${version}`].filter(Boolean).join(", ");
  const text = `It requested ${protocol}: ${advice}.`;
  return { key: JSON.stringify([id, name, version, protocol]), who: host, about, times, ago, text };
}

/** Problems of the broker's processes: those that do not run, and conditions. */
export function conditionsOf({ processes, conditions }) {
  const down = processes.filter(({ state }) => state !== "running");
  return [
    ...down.map(({ name, state }) => ({ key: name, who: name, about: state, text: "This process is not running." })),
    ...conditions.map(({ process, kind, subject, text }) => {
      return { key: JSON.stringify([process, kind, subject]), who: process, about: kind.replaceAll("_", " "), text };
    }),
  ];
}

/** The address without the port: `127.0.0.1` of `127.0.0.1:5`, `::1` of `[::1]:5`. */
export function ipOf(address) {
  const colon = address.lastIndexOf(":");
  return (colon < 0 ? address : address.slice(0, colon)).replace(/^\[|\]$/g, "");
}
