// Polls the broker while the page is visible. Owns the time of the next request; it must never know
// what a response means. Invariant: one request at a time, none while the page is hidden, and a broker
// that is slow or down is polled less often, but polling never stops.

/** Normal polling interval. */
export const PERIOD_MS = 250;

/** Maximum polling interval for a broker that doesn't answer. */
export const PAUSE_MAX_MS = 5000;

/** Timeout of a request. */
export const PATIENCE_MS = 4000;

/**
 * The pause before the next request, after `failures` in a row, or after a response that took `took`
 * ms: the pause is at least as long as the broker worked.
 */
export function pauseAfter(failures, took, period = PERIOD_MS) {
  if (failures === 0) return Math.max(period - took, took, 0);
  return Math.min(PAUSE_MAX_MS, PERIOD_MS * 2 ** Math.min(failures, 10));
}

/**
 * Poll forever: `onAnswer(answer)`, or `onSilence(why, pause)` with the time until the next try. While
 * `isWanted()` is false it stops. Returns a function that polls now, e.g. because it is wanted again.
 */
export function poll(path, onAnswer, onSilence, period = PERIOD_MS, isWanted = () => true) {
  let failures = 0;
  let timer = null;
  let asking = false;

  async function look() {
    clearTimeout(timer);
    if (asking || document.hidden || !isWanted()) return;
    asking = true;
    const began = performance.now();
    let why = null;
    let answer = null;
    try {
      answer = await ask(path);
      failures = 0;
    } catch (error) {
      failures += 1;
      why = error;
    }
    asking = false;
    const pause = pauseAfter(failures, performance.now() - began, period);
    timer = setTimeout(look, pause);
    // An error while drawing is an error of the page, not of the broker: the browser logs it.
    if (why === null) onAnswer(answer);
    else onSilence(why, pause);
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) look();
  });
  look();
  return look;
}

/**
 * The URL of an operation without the credentials that the page's own URL may contain: `fetch`
 * rejects them, and the browser sends them anyway.
 */
function urlOf(path) {
  return new URL(path, `${location.origin}${location.pathname}`);
}

/** Send one request; the error that is thrown says why there is no response. */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(urlOf(path), { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS), ...options });
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? "no response in time" : "the connection was refused");
  }
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => null);
  // The health of a broker that is not ready has the status 503, but is no error.
  if (answer !== null && answer.error === undefined) return answer;
  if (response.ok) throw new Error("the response was incomplete");
  throw new Error(answer?.error?.message ?? `it answered ${response.status}`);
}
