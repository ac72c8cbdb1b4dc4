// Formats figures. Pure: equal figures give equal texts. It must never know where a text is shown.
// Invariant: the result is text, never HTML, whatever names clients chose.

const THOUSANDS = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** `12,345` */
export function count(number) {
  return THOUSANDS.format(number);
}

/** `3 / 5`, or `3` where there is no limit. */
export function against(number, limit) {
  return limit === null ? count(number) : `${count(number)} / ${count(limit)}`;
}

/** `2.5`, or `2.5 / 10`, or a dash where nothing is measured; all of them per second. */
export function rate(number, limit) {
  const shown = number === null ? "–" : TENTHS.format(number);
  return limit === null ? shown : `${shown} / ${TENTHS.format(limit)}`;
}

/** Share of a limit, from 0 to 1; 0 without a limit, 1 for any usage of a zero limit. */
export function fullness(number, limit) {
  if (limit === null || !number) return 0;
  return limit <= 0 ? 1 : Math.min(1, number / limit);
}

/** `12.3 kB` */
export function bytes(number) {
  return amount("fetch", number).replace("/s", "");
}

/** `12 %` */
export function share(part) {
  const percent = part * 100;
  return percent > 0 && percent < 1 ? "< 1 %" : `${Math.round(percent)} %`;
}

/** `just now`, `1.2 s ago` */
export function ago(ms) {
  return ms < 500 ? "just now" : `${duration(ms)} ago`;
}

/** `40 ms`, `1.2 s`, `3 min 5 s`, `2 h 1 min`, `4 d 3 h` */
export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  return coarse(Math.floor(seconds));
}

function coarse(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A connection in a few words, for tooltips and screen readers. */
export function brief(connection) {
  const who = connection.client_id ? `${connection.client_address} ${connection.client_id}` : connection.client_address;
  return connection.in_flight === null ? who : `${who}, ${connection.in_flight} in flight`;
}

/** `1 connection`, `12 connections` */
export function connections(number, which = "") {
  return `${count(number)} ${which}connection${number === 1 ? "" : "s"}`;
}

/** A mark in a few words. */
export function markLabel({ count: many, members }) {
  if (members.length === 0) return `${connections(many, "younger ")}, not listed`;
  return members.length === 1 ? brief(members[0]) : connections(many);
}

/** `confluent-kafka-python 2.6.0`, or that the client didn't report it. */
export function software({ software_name: name, software_version: version }) {
  return name ? `${name} ${version ?? ""}`.trim() : "didn't say";
}

// Quotas -----------------------------------------------------------------------------------------

const KINDS = {
  produce: "bytes produced",
  fetch: "bytes fetched",
  request: "request time",
  controller_mutation: "changes of topics",
};
const THREE_DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const ALL_DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 15 });

/** `bytes produced` of `produce` */
export function kindOf(type) {
  return KINDS[type] ?? type;
}

/** `1.05 MB/s`, `12.5 %`, `3 partitions/s` */
export function amount(type, number) {
  if (type === "request") return `${short(number)} %`;
  if (type === "controller_mutation") return `${short(number)} partitions/s`;
  const units = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
  let unit = 0;
  while (number >= 999.5 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${short(number)} ${units[unit]}`;
}

function short(number) {
  return number > 0 && number < 0.01 ? "< 0.01" : THREE_DIGITS.format(number);
}

/** `500 kB/s / 1 MB/s`, or `50 / 100 kB/s` where units are the same. */
export function use(type, rate, quota) {
  const [used, may] = [amount(type, rate), amount(type, quota)];
  const [number, unit] = [used.replace(/ \S+$/, ""), used.match(/ \S+$/)[0]];
  return may.endsWith(unit) ? `${number} / ${may}` : `${used} / ${may}`;
}

/** `1,048,576` with all digits. */
export function exact(number) {
  return ALL_DIGITS.format(number);
}

/** Kinds and names of the entity of a counter; users are encoded, and may be truncated. */
export function parties({ user, client_id: client }) {
  const found = [];
  if (user) found.push(["user", decoded(user)]);
  if (client) found.push(["client-id", client]);
  return found.length ? found : [["client-id", "none given"]];
}

/** The decoded name, or the encoded one if it cannot be decoded. */
export function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** `user alice, client-id reports` */
export function party(counter) {
  return parties(counter)
    .map((each) => each.join(" "))
    .join(", ");
}

/** `throttled 1.2 s`, or the average in the last minute, or a dash. */
export function throttle({ throttled, throttle_ms: average }) {
  if (throttled !== null) return `throttled ${duration(throttled)}`;
  return average === null ? "–" : `${duration(average)} on average`;
}

/** The explanation as a sentence: of the next request, or of a past throttle. */
export function verdict({ throttle: was, throttle_ms: delay }) {
  if (was) return `${was.api} waited ${duration(delay)}, ${ago(was.ago_ms)}`;
  return delay > 0 ? `A request now would wait ${duration(delay)}` : "A request now would not wait";
}

/** The counters that are not in the rows. */
export function rest({ left, unbounded, unlisted }) {
  const parts = [
    left && `${count(left)} with a lower share of their quota`,
    unbounded && `${count(unbounded)} without a quota`,
    unlisted && `${count(unlisted)} less recently active`,
  ].filter(Boolean);
  return parts.length ? `Not listed: ${parts.join(", ")}.` : "";
}
