// Interprets records as the broker returns them, and what is entered to produce one. Pure: it must never
// know the page. Invariant: keys, values and headers are bytes or null, and whatever they contain becomes
// text, never HTML.

/** Records that are read at a time. */
export const PAGE = 100;

/** Records that a search reads at most before it asks whether to continue. */
export const SEARCHED_MAX = 20_000;

/** Characters of a value in a row. */
export const PREVIEW_MAX = 200;

/** Bytes of a value that are shown, at most. */
export const SHOWN_BYTES_MAX = 64 * 1024;

const HEX_COLUMNS = 16;
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder();

/** A record with its contents as bytes. */
export function recordOf(answer) {
  return {
    partition: answer.partition,
    offset: answer.offset,
    timestamp: answer.timestamp_ms,
    key: bytesOf(answer.key, answer.key_base64),
    value: bytesOf(answer.value, answer.value_base64),
    headers: answer.headers.map((each) => ({ name: each.key, value: bytesOf(each.value, each.value_base64) })),
  };
}

function bytesOf(text, base64) {
  if (base64 !== null) return Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  return text === null ? null : new TextEncoder().encode(text);
}

/** Bytes as text; null if they are not UTF-8. */
export function textOf(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

/** Bytes in one line: as text with visible control characters, or in hex. */
export function previewOf(bytes) {
  if (bytes === null) return "null";
  const text = textOf(bytes);
  if (text === null) return shortened([...bytes.slice(0, PREVIEW_MAX)].map(hex).join(" "));
  return shortened(text.replace(/[\u0000-\u001f\u007f]/g, (each) => String.fromCharCode(0x2400 + (each === "\u007f" ? 0x21 : each.charCodeAt(0)))));
}

function shortened(text) {
  return text.length > PREVIEW_MAX ? `${text.slice(0, PREVIEW_MAX)}…` : text;
}

function hex(byte) {
  return byte.toString(16).padStart(2, "0");
}

/** Indented JSON; null if the bytes are no JSON object or array. */
export function jsonOf(bytes) {
  const text = bytes === null ? null : textOf(bytes);
  if (text === null || !/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

/** The same JSON with line ends; numbers stay as they are written, also those that are too large. */
function indented(text) {
  let depth = 0;
  let done = "";
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[{]\s*[\]}]|[[\]{},:]|[^\s[\]{},:"]+/g)) {
    if (/^[[{]$/.test(token)) done += `${token}\n${"  ".repeat(++depth)}`;
    else if (/^[\]}]$/.test(token)) done += `\n${"  ".repeat(--depth)}${token}`;
    else if (token === ",") done += `,\n${"  ".repeat(depth)}`;
    else done += token === ":" ? ": " : token;
  }
  return done;
}

/** Lines of an offset, sixteen bytes in hex, and these as characters. */
export function dumpOf(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += HEX_COLUMNS) {
    const line = [...bytes.slice(at, at + HEX_COLUMNS)];
    const characters = line.map((each) => (each >= 0x20 && each < 0x7f ? String.fromCharCode(each) : "."));
    const numbers = line.map(hex).join(" ").padEnd(3 * HEX_COLUMNS - 1);
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers}  ${characters.join("")}`);
  }
  return lines.join("\n");
}

/** The forms in which bytes can be shown, the most readable first. */
export function formsOf(bytes) {
  const shown = bytes.slice(0, SHOWN_BYTES_MAX);
  const isWhole = shown.length === bytes.length;
  const json = isWhole ? jsonOf(bytes) : null;
  const text = isWhole ? textOf(bytes) : lenient.decode(shown);
  return [["JSON", json], ["text", text], ["hex", dumpOf(shown)]].filter(([, content]) => content !== null);
}

/** Whether a key, value or header contains a text, without regard to case. */
export function matches(record, search) {
  const wanted = search.trim().toLowerCase();
  const contents = [record.key, record.value, ...record.headers.flatMap(({ name, value }) => [new TextEncoder().encode(name), value])];
  return wanted === "" || contents.some((bytes) => bytes !== null && lenient.decode(bytes).toLowerCase().includes(wanted));
}

/** The query of the first page, from the form's fields and the topic's number of partitions. */
export function queryOf({ partition, from, value }, partitions) {
  const query = { limit: PAGE };
  if (partition !== "") query.partition = partition;
  if (from === "offset") query.offset = wholeNumber(value);
  if (from === "last") {
    const read = partition === "" ? Math.max(1, partitions) : 1;
    query.last = Math.ceil(PAGE / read);
    query.limit = PAGE + read;
  }
  return query;
}

/** The query of what follows an answer. */
export function following({ next }, limit) {
  return { limit, positions: positionsOf(Object.entries(next)) };
}

/** `0:5,1:7` */
export function positionsOf(pairs) {
  return pairs.map((pair) => pair.join(":")).join(",");
}

function wholeNumber(text) {
  if (!/^\s*\d{1,15}\s*$/.test(text)) throw new Error("the offset must be a whole number");
  return Number(text);
}

/** The record of the form to produce one; its fields are texts. */
export function entered({ key, value, as, headers, partition, tombstone }) {
  const record = {};
  if (key !== "") record.key = key;
  if (!tombstone && as === "json") checkJson(value);
  if (!tombstone && as === "hex") record.value_base64 = base64Of(value);
  else if (!tombstone) record.value = value;
  const lines = headers.split("\n").filter((line) => line.trim() !== "");
  if (lines.length) record.headers = lines.map(headerOf);
  if (partition !== "") record.partition = Number(partition);
  return record;
}

function checkJson(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw new Error(`the value is not JSON: ${error.message}`);
  }
}

function headerOf(line) {
  const colon = line.indexOf(":");
  if (colon < 0) return { key: line.trim() };
  return { key: line.slice(0, colon).trim(), value: line.slice(colon + 1).trim() };
}

function base64Of(text) {
  const digits = text.replace(/\s/g, "");
  if (!/^([0-9a-f]{2})*$/i.test(digits)) throw new Error("the value must be pairs of hexadecimal digits");
  return btoa((digits.match(/../g) ?? []).map((pair) => String.fromCharCode(parseInt(pair, 16))).join(""));
}
