// Interprets the entries of the journal. Owns which response belongs to which request, and the words of
// a row; it must never know the page. Invariant: every entry is in one row, a request and its response
// in the same; memory is bounded, and the newest rows are kept.

/** Rows that are kept. */
export const ROWS_MAX = 300;

/** Before the first answer. */
export const EMPTY = { rows: [], after: 0, dropped: 0 };

/** The scene after an answer of `/v1/journal`. */
export function advance(scene, page) {
  const rows = [...scene.rows];
  for (const entry of page.entries) add(rows, entry);
  const newest = page.entries.at(-1)?.sequence ?? 0;
  const after = page.has_more ? newest : Math.max(page.last, newest, scene.after);
  return { rows: rows.slice(-ROWS_MAX), after, dropped: page.dropped };
}

function add(rows, entry) {
  if (entry.kind === "response") {
    // A request before a loss has a lost response, or this is that of a lost request.
    const at = rows.findLastIndex(
      (row) => row.kind === "lost" || (row.kind === "request" && row.connection === entry.connection),
    );
    if (at >= 0 && rows[at].kind === "request" && rows[at].response === null) {
      rows[at] = { ...rows[at], ...answered(entry) };
      return;
    }
  }
  const isExchange = entry.kind === "request" || entry.kind === "response";
  rows.push({
    key: entry.sequence,
    kind: entry.kind,
    clock: entry.clock_ms,
    connection: entry.connection,
    subject: entry.connection === null ? entry.role : (entry.client_id ?? ""),
    text: isExchange ? (entry.api ? `${entry.api} v${entry.version}` : "no header") : eventText(entry),
    bytes: entry.kind === "request" ? entry.frame_bytes : null,
    request: entry.kind === "request" ? entry.sequence : null,
    response: null,
    received: null,
    total: null,
    stages: {},
    throttle: 0,
    ...(entry.kind === "response" ? answered(entry) : {}),
  });
}

function answered(entry) {
  return {
    response: entry.sequence,
    received: entry.frame_bytes,
    total: entry.stages.total ?? null,
    stages: entry.stages,
    throttle: entry.throttle_time_ms ?? 0,
  };
}

const LOSS_REASONS = {
  process_ended: "the process ended before it handed them over",
  process_memory: "the process recorded more than it may keep",
  journal_memory: "the journal's memory is full",
};

/** An entry other than a request or response in words. */
export function eventText({ kind, details, address, api }) {
  if (kind === "connection_opened") return `opened from ${address}`;
  if (kind === "connection_closed") return `closed: ${details.reason}${details.text ? `, ${details.text}` : ""}`;
  if (kind === "connection_rejected") return `rejected from ${address}: ${details.reason}${details.limit ? `, ${details.limit}=${details.value}` : ""}`;
  if (kind === "fault") return `fault rule ${details.rule}: ${details.action}${api ? ` of ${api}` : ""}`;
  if (kind === "clock") {
    return `clock ${((details.to - details.from) / 1000).toFixed(3)} s on${details.frozen ? ", frozen" : ""}`;
  }
  if (kind === "lost") return `${details.entries} entries lost: ${LOSS_REASONS[details.reason]}`;
  return `${details.what} ${details.name}: ${details.from ?? "none"} → ${details.to ?? "none"}`;
}

/** The time of the broker's clock, in UTC. */
export function timeOf(clock) {
  return new Date(clock).toISOString().slice(11, 23);
}

/** The milliseconds of a request in queues, executing, of the processor and sending. */
export function stagesText(stages) {
  return ["queue", "execution", "network", "send"]
    .filter((name) => name in stages)
    .map((name) => stages[name].toFixed(1))
    .join(" / ");
}
