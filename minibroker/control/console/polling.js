// Asks the broker, again and again, while somebody looks. Owns when to ask next; it must never
// know what an answer means. The invariant: one question at a time, none while the page is hidden,
// and a broker that is slow or away is asked less often, but never given up.

/** Between two questions when all is well. */
export const PERIOD_MS = 250;

/** Between two questions to a broker that doesn't answer, at most. */
export const PAUSE_MAX_MS = 5000;

/** How long an answer may take. */
export const PATIENCE_MS = 4000;

/**
 * How long to wait before the next question, after `failures` in a row, or after an answer that
 * took `took` ms: a broker at work on thousands of connections is left alone as long as it worked.
 */
export function pauseAfter(failures, took, period = PERIOD_MS) {
  if (failures === 0) return Math.max(period - took, took, 0);
  return Math.min(PAUSE_MAX_MS, PERIOD_MS * 2 ** Math.min(failures, 10));
}

/** Ask for ever: `onAnswer(answer)`, or `onSilence(why, pause)` with the time until the next try. */
export function poll(url, onAnswer, onSilence, period = PERIOD_MS) {
  let failures = 0;
  let timer = null;
  let asking = false;

  async function look() {
    timer = null;
    if (asking || document.hidden) return;
    asking = true;
    const began = performance.now();
    let why = null;
    let answer = null;
    try {
      answer = await ask(url);
      failures = 0;
    } catch (error) {
      failures += 1;
      why = error;
    }
    asking = false;
    const pause = pauseAfter(failures, performance.now() - began, period);
    timer = setTimeout(look, pause);
    // What fails in drawing is a fault of the page, not of the broker: it goes to the browser's log.
    if (why === null) onAnswer(answer);
    else onSilence(why, pause);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    clearTimeout(timer);
    look();
  });
  look();
}

/** Ask once; what is thrown says in words why there is no answer. */
export async function ask(url) {
  let response;
  try {
    response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  } catch (error) {
    throw new Error(error.name === "TimeoutError" ? "it takes too long" : "nobody listens there");
  }
  const answer = await response.json().catch(() => null);
  // The health of a broker that is not ready has the status 503, but is no error.
  if (answer !== null && answer.error === undefined) return answer;
  if (response.ok) throw new Error("its answer broke off");
  throw new Error(answer?.error?.message ?? `it answered ${response.status}`);
}
