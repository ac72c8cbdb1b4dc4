// Derives the view of quotas from the broker's responses: entities near their quota, throttles, and
// usage in the last two minutes. Pure: times are arguments; it must never know the page. Invariant:
// the state is bounded by the entries of the last response and by LINE_MS. Kafka shows the same values
// as MBeans.

/** Rows drawn, at most: those with the highest share of their quota. */
export const SHOWN_MAX = 40;

/** Time span of a line. */
export const LINE_MS = 120_000;

/** Interval between two points of a line. */
export const POINT_MS = 1000;

/** A line has a gap if there was no response for longer, for example while the page was hidden. */
export const GAP_MS = 5000;

/** Throttled entities that are kept for LINE_MS, at most. */
export const THROTTLED_MAX = 60;

/** Size of the drawing of a line. */
export const LINE = Object.freeze({ width: 120, height: 30 });

/** The state before the first response. */
export const UNKNOWN = Object.freeze({ newest: null, lines: new Map(), throttles: [] });

/** The view after `answer`, given the previous view; `now` in ms. */
export function advance(known, answer, now) {
  // A restarted broker counts from the beginning.
  const before = newestOf(answer.throttles) < known.newest ? { ...UNKNOWN, newest: 0 } : known;
  const fresh = answer.throttles.filter(({ number }) => number > (before.newest ?? 0)).reverse();
  // Throttles from before the page was opened are listed, but don't flash.
  const begun = new Map(before.newest === null ? [] : fresh.map((each) => [keyOf(each), each.throttle_ms]));
  const lines = new Map();
  const uses = [];
  for (const use of answer.uses) {
    const key = keyOf(use);
    // Very long names are truncated, and may then be equal.
    if (lines.has(key)) continue;
    const again = begun.has(key);
    const throttled = again ? begun.get(key) : heldFor(use);
    const point = { at: now, rate: use.rate, throttled: throttled !== null };
    lines.set(key, extend(before.lines.get(key) ?? [], point));
    if (use.quota !== null) uses.push({ ...use, key, throttled, again });
  }
  uses.sort((one, other) => shareOf(other) - shareOf(one));
  const shown = uses.slice(0, SHOWN_MAX).sort(byTenths);
  return {
    counting: answer.counting,
    now,
    uses: shown,
    left: uses.length - shown.length,
    unbounded: lines.size - uses.length,
    unlisted: Math.max(0, answer.uses_total - answer.uses.length),
    held: uses.filter((use) => use.throttled !== null).length,
    throttles: gather(before.throttles, answer.throttles, fresh, now),
    lines,
    newest: newestOf(answer.throttles),
  };
}

/** The view with the usage that the broker has sampled, as far as it is older than what is known. */
export function recall(known, { interval_ms: interval, sampled_ago_ms: ago, uses }, now) {
  const lines = new Map(known.lines);
  for (const use of uses) {
    const key = keyOf(use);
    const line = lines.get(key) ?? [];
    const past = use.rates.flatMap((rate, index) => {
      const at = now - ago - interval * (use.rates.length - 1 - index);
      return rate === null || at <= now - LINE_MS ? [] : [{ at, rate, throttled: use.throttled[index] }];
    });
    const missing = past.filter(({ at }) => line.every((point) => Math.abs(point.at - at) >= POINT_MS));
    lines.set(key, [...line, ...missing].sort((one, other) => one.at - other.at));
  }
  return { ...known, lines };
}

/** The key of a counter. */
export function keyOf({ type, user, client_id: client }) {
  return JSON.stringify([type, user, client]);
}

function newestOf(throttles) {
  return throttles[0]?.number ?? 0;
}

/** The duration of the current throttle; null if there is none. */
function heldFor({ throttled_ago_ms: ago, last_throttle_ms: delay }) {
  return ago !== null && delay > ago ? delay : null;
}

/** Ordered by tenths of their quota, so that rows don't move with every request. */
function byTenths(one, other) {
  return tenths(other) - tenths(one) || (one.key < other.key ? -1 : 1);
}

function tenths(use) {
  return Math.round(10 * shareOf(use));
}

/** Any usage of a zero quota is infinite. */
function shareOf({ share, rate }) {
  return share ?? (rate > 0 ? Number.MAX_SAFE_INTEGER : 0);
}

/** Groups previous and `fresh` throttles by counter and API, newest first. */
function gather(before, listed, fresh, now) {
  // While the broker lists a throttle, the time on its clock counts, which may be changed.
  const agos = new Map(listed.map(({ number, ago_ms: ago }) => [number, ago]));
  const aged = before.map((each) => ({ ...each, ago_ms: agos.get(each.number) ?? now - each.at }));
  const found = new Map(aged.map((each) => [each.key, each]));
  for (const throttle of fresh) {
    const key = `${throttle.api} ${keyOf(throttle)}`;
    const times = (found.get(key)?.times ?? 0) + 1;
    found.set(key, { ...throttle, key, times, at: now - throttle.ago_ms });
  }
  const kept = [...found.values()].filter(({ ago_ms: ago }) => ago <= LINE_MS);
  // Rows of permanently throttled entities don't move.
  const when = ({ ago_ms: ago }) => Math.floor(ago / GAP_MS);
  kept.sort((one, other) => when(one) - when(other) || (one.key < other.key ? -1 : 1));
  return kept.slice(0, THROTTLED_MAX);
}

// Lines ------------------------------------------------------------------------------------------

function extend(line, point) {
  const kept = line.filter(({ at }) => at > point.at - LINE_MS);
  const last = kept.at(-1);
  if (!last || point.at - last.at >= POINT_MS) return [...kept, point];
  // A throttle between two points must not be lost.
  return [...kept.slice(0, -1), { ...last, rate: point.rate, throttled: last.throttled || point.throttled }];
}

/**
 * How a line is drawn: `use` and `throttled` are paths, `bound` how far from the top the quota is.
 * A quota is drawn at four fifths of the height unless usage exceeds it.
 */
export function trace(line, quota, now) {
  const top = Math.max(quota * 1.25, ...line.map(({ rate }) => rate * 1.05), Number.MIN_VALUE);
  const x = (at) => round(LINE.width * (1 - (now - at) / LINE_MS));
  const y = (rate) => round((LINE.height - 1) * (1 - rate / top) + 0.5);
  const pieces = line.map(({ at, rate }, index) => {
    const joined = index > 0 && at - line[index - 1].at <= GAP_MS;
    return `${joined ? "L" : "M"}${x(at)} ${y(rate)}`;
  });
  const last = line.at(-1);
  if (last) pieces.push(`L${x(now)} ${y(last.rate)}`);
  const step = round((LINE.width * POINT_MS) / LINE_MS);
  const held = line.filter(({ throttled }) => throttled).map(({ at }) => `M${x(at)} ${LINE.height}h${step}`);
  return { use: pieces.join(""), throttled: held.join(""), bound: y(quota) };
}

function round(number) {
  return Math.round(number * 10) / 10;
}
