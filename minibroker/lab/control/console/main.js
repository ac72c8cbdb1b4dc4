// Assembles the page: pollers feed the models, and the models feed the drawings. Owns the selection
// only. Invariant: a view shows exactly one scene, the latest; if the broker doesn't answer, the page
// reports it and marks the scene as outdated.

import { element, Meter, write } from "./dom.js";
import { Faults } from "./faults.js";
import { Groups } from "./groups.js";
import { Messages } from "./messages.js";
import { advance, conditionsOf, ipOf, NOTHING } from "./model.js";
import { Addresses, Chosen, ofAddress, Rejections, Warnings } from "./panels.js";
import { ask, poll } from "./polling.js";
import { Explained, Throttles, Uses } from "./quotas.js";
import { Requests } from "./requests.js";
import { Stage } from "./stage.js";
import { Topics } from "./topics.js";
import * as usage from "./usage.js";
import { Views } from "./views.js";
import * as words from "./words.js";

/** Polling interval of quotas, whose rates are averages over seconds. */
const QUOTAS_PERIOD_MS = 500;

/** Polling interval of the broker's health. */
const HEALTH_PERIOD_MS = 2000;

const place = (id) => document.getElementById(id);

let scene = NOTHING;
let answeredAt = null;
/** The selection: `{ connection }`, `{ members, heading }` or `{ ip }`. */
let chosen = {};
let pointedAt = null;
let quotas = usage.UNKNOWN;
/** The number of the counter or throttle to explain, and its explanation. */
let puzzle = null;
let explanation = null;

const totals = { connections: new Meter("connections"), rate: new Meter("new per second") };
place("totals").append(totals.connections.root, totals.rate.root);
const mode = element("p", "mode");
place("totals").append(mode);

const stage = new Stage({ choose: chooseMark, point: showTip });
const addresses = new Addresses(place("addresses"), { choose: chooseAddress, point: pointAddress });
const rejections = new Rejections(place("rejections"));
const warnings = new Warnings(place("warnings"));
const conditions = new Warnings(place("conditions"));
const details = new Chosen(place("chosen"), { choose: chooseConnection });

const uses = new Uses(place("uses"), { choose: explain });
const throttles = new Throttles(place("throttles"), { choose: explain });
const explained = new Explained(place("explained"));
const requests = new Requests(
  {
    form: place("requests-filter"),
    button: place("requests-record"),
    table: place("requests"),
    detail: place("frames"),
  },
  () => !place("view-requests").hidden,
);
const faults = new Faults(
  { table: place("faults"), form: place("faults-form"), problem: place("faults-problem") },
  () => !place("view-faults").hidden,
);
const groups = new Groups(
  { list: place("groups"), detail: place("group"), form: place("reset"), problem: place("reset-answer") },
  () => !place("view-groups").hidden,
);
const messages = new Messages({
  filter: place("messages-filter"),
  more: place("messages-more"),
  list: place("messages"),
  detail: place("message"),
  produce: place("produce"),
  answer: place("produce-answer"),
});
const topics = new Topics(
  { filter: place("topics-filter"), list: place("topics"), detail: place("topic") },
  {
    onChosen: (name, partitions) => messages.choose(name, partitions),
    onPartitions: (partitions) => messages.grow(partitions),
  },
  () => !place("view-topics").hidden,
);
const views = new Views(document.querySelectorAll("[role=tab]"), onShow);

function draw() {
  if (views.shows("connections")) {
    stage.draw(scene, isShown);
    addresses.show(scene, chosen.ip);
    rejections.show(scene);
    warnings.show(scene.warnings);
    place("warnings-panel").hidden = scene.warnings.length === 0;
    showChosen();
  }
  const { connections, limit, rate, rateLimit } = scene.totals;
  totals.connections.show(words.against(connections, limit), words.fullness(connections, limit), limit !== null);
  totals.rate.show(words.rate(rate, rateLimit), words.fullness(rate, rateLimit), rateLimit !== null);
  write(mode, scene.mode === "sharded" ? "each processor accepts" : "one acceptor");
}

function isShown(mark) {
  const ip = pointedAt ?? chosen.ip ?? null;
  return ip === null || mark.members.some((connection) => ipOf(connection.client_address) === ip);
}

// Choosing ---------------------------------------------------------------------------------------

function chooseMark(mark, processor) {
  const [connection] = mark.members;
  if (mark.members.length === 1) chosen = { connection: { ...connection, processor } };
  else chosen = { members: mark.members, heading: words.markLabel(mark) };
  stage.setCursor(processor, mark.key);
  redraw();
}

function chooseConnection(key) {
  const connection = scene.connections.get(key);
  if (!connection) return;
  chosen = { connection };
  stage.setCursor(connection.processor, key);
  redraw();
}

function chooseAddress(ip) {
  chosen = chosen.ip === ip ? {} : { ip };
  stage.setCursor(null, null);
  redraw();
}

function pointAddress(ip) {
  pointedAt = ip;
  redraw();
}

/** Draw the scene again without repeating its animations. */
function redraw() {
  scene = { ...scene, flights: [] };
  draw();
}

function showChosen() {
  if (chosen.ip) {
    const many = ofAddress(scene.connections, chosen.ip);
    const which = scene.unlisted ? "listed " : "";
    details.show({ heading: `${words.connections(many.length, which)} of ${chosen.ip}`, many });
  } else if (chosen.members) {
    const many = chosen.members.filter((each) => scene.connections.has(each.connection_id));
    details.show({ heading: chosen.heading, many });
  } else if (chosen.connection) {
    const now = scene.connections.get(chosen.connection.connection_id);
    if (now) chosen = { connection: now };
    details.show({ connection: chosen.connection, gone: !now });
  } else {
    details.show({});
  }
}

function showTip(mark, event) {
  const tip = place("tip");
  tip.hidden = mark === null;
  if (mark === null) return;
  write(tip, words.markLabel(mark));
  const { innerWidth } = window;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  tip.style.transform = `translate(${left}px, ${event.clientY + 16}px)`;
}

// Quotas -----------------------------------------------------------------------------------------

function drawQuotas() {
  write(place("held"), quotas.held ? words.count(quotas.held) : "");
  place("held").title = quotas.held ? "throttled now" : "";
  if (!views.shows("quotas")) return;
  const [first] = scene.listeners ?? [];
  const { key = null, number } = puzzle ?? {};
  uses.show(quotas, number ? null : key, first ? `${first.host}:${first.port}` : "");
  throttles.show(quotas, number ? key : null);
}

function explain(counter) {
  const again = puzzle !== null && puzzle.key === counter.key && puzzle.number === counter.number;
  puzzle = again ? null : counter;
  explanation = null;
  explained.show(puzzle);
  drawQuotas();
  askWhy();
}

/** Request the explanation once; it is requested again with each poll of quotas. */
async function askWhy() {
  const asked = puzzle;
  if (asked === null) return;
  const { user, client_id, type, number: throttle } = asked;
  const query = throttle ? { throttle } : { user: words.decoded(user), client_id, type };
  let [found, why] = [null, null];
  try {
    found = await ask(`v1/quotas/explain?${new URLSearchParams(query)}`);
  } catch (error) {
    why = error.message;
  }
  if (asked !== puzzle) return;
  if (found === null) {
    // The explanation of a throttle stays valid after the broker has dropped it.
    if (explanation === null) explained.show(puzzle, null, why);
    return;
  }
  const isFirst = explanation === null;
  explanation = found;
  explained.show(puzzle, explanation);
  // On a phone it is below everything else.
  if (isFirst) place("explained").parentElement.scrollIntoView({ block: "nearest" });
}

function onQuotas(answer) {
  quotas = usage.advance(quotas, answer, performance.now());
  drawQuotas();
  if (views.shows("quotas")) askWhy();
}

function onShow() {
  // The first time there is nothing yet to draw.
  place("legend").hidden = place("view-connections").hidden;
  place("quotas-legend").hidden = place("view-quotas").hidden;
  if (answeredAt !== null) redraw();
  if (quotas.newest !== null) drawQuotas();
  requests.look();
  faults.look();
  groups.look();
  topics.look();
}

// The broker -------------------------------------------------------------------------------------

function onHealth(health) {
  const found = conditionsOf(health);
  conditions.show(found);
  place("conditions-panel").hidden = found.length === 0;
}

function onAnswer(answer) {
  scene = advance(scene, answer);
  answeredAt = performance.now();
  document.body.dataset.state = "live";
  write(place("status"), "live");
  document.title = `${words.connections(scene.totals.connections)} · minibroker`;
  draw();
}

function onSilence(why, pause) {
  document.body.dataset.state = "silent";
  const last = answeredAt === null ? "" : `last seen ${words.ago(performance.now() - answeredAt)}, `;
  const text = `Not answering: ${why.message}; ${last}next try in ${words.duration(pause)}`;
  write(place("status"), text);
  document.title = "not answering · minibroker";
}

/** Draw the usage from before the page was opened, or was visible. */
async function askUsageHistory() {
  if (document.hidden) return;
  const history = await ask("v1/quotas/history").catch(() => null);
  if (history !== null) quotas = usage.recall(quotas, history, performance.now());
}

poll("v1/connections", onAnswer, onSilence);
// The other poller reports whether the broker answers.
poll("v1/quotas", onQuotas, () => {}, QUOTAS_PERIOD_MS);
poll("v1/health", onHealth, () => {}, HEALTH_PERIOD_MS);
askUsageHistory();
document.addEventListener("visibilitychange", askUsageHistory);
