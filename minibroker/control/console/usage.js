// From the broker's answers about quotas to what there is to draw of them: who is near a bound, who
// is throttled now, and how use went in the last two minutes. Pure: times are arguments; it must
// never know the page. The invariant: what is remembered is bounded by what the last answer listed,
// and by LINE_MS of it. Kafka shows as much through MBeans, one number at a time.

/** Rows drawn, at most: those that use most of theirs. */
export const SHOWN_MAX = 40;

/** How far back a line goes. */
export const LINE_MS = 120_000;

/** A line has one point for each of these. */
export const POINT_MS = 1000;

/** Where nothing was seen for longer, as while the page was hidden, a line is broken. */
export const GAP_MS = 5000;

/** Of whom it is remembered for LINE_MS that they were throttled, at most. */
export const LATELY_MAX = 60;

/** What lines are drawn in. */
export const LINE = Object.freeze({ width: 120, height: 30 });

/** Before the first answer. */
export const UNKNOWN = Object.freeze({ newest: null, lines: new Map(), throttles: [] });

/** What there is to draw after `answer`, given what there was before it; `now` in ms. */
export function advance(known, answer, now) {
  // A broker that was started again counts from the beginning.
  const before = newestOf(answer.throttles) < known.newest ? { ...UNKNOWN, newest: 0 } : known;
  const fresh = answer.throttles.filter(({ number }) => number > (before.newest ?? 0)).reverse();
  // What was begun before somebody looked is listed, but doesn't flash.
  const begun = new Map(before.newest === null ? [] : fresh.map((each) => [keyOf(each), each.throttle_ms]));
  const lines = new Map();
  const uses = [];
  for (const use of answer.uses) {
    const key = keyOf(use);
    // Names that are very long are cut, and may then be the same.
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

/** What tells one counter from all others. */
export function keyOf({ type, user, client_id: client }) {
  return JSON.stringify([type, user, client]);
}

function newestOf(throttles) {
  return throttles[0]?.number ?? 0;
}

/** For how long somebody is held at this moment, counted from its beginning; null if nobody is. */
function heldFor({ throttled_ago_ms: ago, last_throttle_ms: delay }) {
  return ago !== null && delay > ago ? delay : null;
}

/** By tenths of their quota, so that rows don't change places for every request. */
function byTenths(one, other) {
  return tenths(other) - tenths(one) || (one.key < other.key ? -1 : 1);
}

function tenths(use) {
  return Math.round(10 * shareOf(use));
}

/** Of a quota of nothing any use is more than can be told. */
function shareOf({ share, rate }) {
  return share ?? (rate > 0 ? Number.MAX_SAFE_INTEGER : 0);
}

/** Throttles of one counter for one API as one, those before and `fresh` ones, newest first. */
function gather(before, told, fresh, now) {
  // As long as the broker tells of one its clock counts, which may be turned.
  const agos = new Map(told.map(({ number, ago_ms: ago }) => [number, ago]));
  const aged = before.map((each) => ({ ...each, ago_ms: agos.get(each.number) ?? now - each.at }));
  const found = new Map(aged.map((each) => [each.key, each]));
  for (const throttle of fresh) {
    const key = `${throttle.api} ${keyOf(throttle)}`;
    const times = (found.get(key)?.times ?? 0) + 1;
    found.set(key, { ...throttle, key, times, at: now - throttle.ago_ms });
  }
  const kept = [...found.values()].filter(({ ago_ms: ago }) => ago <= LINE_MS);
  // Those who are throttled all the time don't change places.
  const when = ({ ago_ms: ago }) => Math.floor(ago / GAP_MS);
  kept.sort((one, other) => when(one) - when(other) || (one.key < other.key ? -1 : 1));
  return kept.slice(0, LATELY_MAX);
}

// Lines ------------------------------------------------------------------------------------------

function extend(line, point) {
  const kept = line.filter(({ at }) => at > point.at - LINE_MS);
  const last = kept.at(-1);
  if (!last || point.at - last.at >= POINT_MS) return [...kept, point];
  // A throttle between two points is not to be lost.
  return [...kept.slice(0, -1), { ...last, rate: point.rate, throttled: last.throttled || point.throttled }];
}

/**
 * How a line is drawn: `use` and `throttled` are paths, `bound` how far from the top the quota is.
 * A quota lies at four fifths of the height unless more was used.
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
