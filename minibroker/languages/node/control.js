'use strict';

const PAGE = 1000;
const WAIT_MS = 10_000;

class Topics {
  constructor(broker) {
    this.broker = broker;
  }

  create(name, { partitions = 1, configs } = {}) {
    return this.broker.call('POST', ['topics'], { name, partitions, configs });
  }

  async delete(name) {
    await this.broker.call('DELETE', ['topics', name]);
  }

  get(name) {
    return this.broker.call('GET', ['topics', name]);
  }

  async list() {
    return (await this.broker.call('GET', ['topics'])).topics;
  }

  async produce(name, messages) {
    const records = messages.map((message) => (message?.constructor === Object ? message : { value: message }));
    return (await this.broker.call('POST', ['topics', name, 'records'], { records })).records;
  }

  async messages(name) {
    const found = [];
    for (let positions; ; ) {
      const query = { positions, limit: PAGE };
      const page = await this.broker.call('GET', ['topics', name, 'records'], undefined, query);
      found.push(...page.records);
      if (!page.has_more) return found;
      positions = Object.entries(page.next).map((position) => position.join(':')).join();
    }
  }

  async waitFor(name, count = 1, timeoutMs = WAIT_MS) {
    const query = { wait: count, limit: count, timeout_ms: timeoutMs };
    return (await this.broker.call('GET', ['topics', name, 'records'], undefined, query)).records;
  }
}

class Groups {
  constructor(broker) {
    this.broker = broker;
  }

  async list() {
    return (await this.broker.call('GET', ['groups'])).groups;
  }

  waitFor(id, { state, members, lag } = { state: 'Stable' }, timeoutMs = WAIT_MS) {
    const query = { group_id: id, state, members, lag, timeout_ms: timeoutMs };
    return this.broker.call('GET', ['groups', ''], undefined, query);
  }
}

class Faults {
  constructor(broker) {
    this.broker = broker;
  }

  async add(rule) {
    return new Fault(this.broker, await this.broker.call('POST', ['faults'], rule));
  }

  async list() {
    return (await this.broker.call('GET', ['faults'])).faults;
  }

  async clear() {
    await this.broker.call('DELETE', ['faults']);
  }
}

class Fault {
  constructor(broker, view) {
    this.broker = broker;
    this.id = view.id;
    this.rule = view.rule;
  }

  view() {
    return this.broker.call('GET', ['faults', this.id]);
  }

  wait(hits = 1, timeoutMs = 10_000) {
    return this.broker.call('GET', ['faults', this.id, 'wait'], undefined, { hits, timeout_ms: timeoutMs });
  }

  async release() {
    return (await this.broker.call('POST', ['faults', this.id, 'release'])).released;
  }

  async remove() {
    await this.broker.call('DELETE', ['faults', this.id]);
  }
}

class Clock {
  constructor(broker) {
    this.broker = broker;
  }

  get() {
    return this.broker.call('GET', ['clock']);
  }

  advance(ms) {
    return this.broker.call('POST', ['clock'], { advance_ms: ms });
  }

  freeze(frozen = true) {
    return this.broker.call('POST', ['clock'], { freeze: frozen });
  }
}

class Journal {
  #after = 0;

  constructor(broker) {
    this.broker = broker;
  }

  async start() {
    this.#after = (await this.broker.call('POST', ['journal'], { enabled: true })).last;
  }

  async stop() {
    await this.broker.call('POST', ['journal'], { enabled: false });
  }

  async entries(conditions = {}) {
    const found = [];
    for (let after = this.#after; ; after = found.at(-1).sequence) {
      const page = await this.broker.call('GET', ['journal'], undefined, { ...conditions, after, limit: 1000 });
      found.push(...page.entries);
      if (!page.has_more) return found;
    }
  }

  async waitFor(conditions = {}, timeoutMs = 10_000) {
    const deadline = Date.now() + timeoutMs;
    for (let after = this.#after; ; ) {
      const wait_ms = Math.max(deadline - Date.now(), 0);
      const query = { ...conditions, after, wait_ms, limit: 1 };
      const [entry] = (await this.broker.call('GET', ['journal'], undefined, query)).entries;
      if (!entry) throw new Error(`no entry with ${JSON.stringify(conditions)} within ${timeoutMs} ms`);
      if (entry.kind !== 'lost' || conditions.kind === 'lost') return entry;
      after = entry.sequence;
    }
  }
}

module.exports = { Topics, Groups, Faults, Clock, Journal };
