'use strict';

const assert = require('node:assert');
const { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { after, before, describe, test } = require('node:test');
const { findCommand } = require('../find.js');
const { Minibroker } = require('../index.js');

async function ownTopics(kafka) {
  return (await kafka.topics.list()).filter((topic) => !topic.internal).map((topic) => topic.name);
}

describe('a running broker', () => {
  let kafka;

  before(async () => {
    kafka = await Minibroker.start({ settings: { 'num.partitions': 3 } });
  });
  after(() => kafka.stop());

  test('topics are created, described and deleted', async () => {
    await kafka.topics.create('orders', { partitions: 2, configs: { 'retention.ms': '60000' } });
    assert.strictEqual((await kafka.topics.get('orders')).partitions.length, 2);
    assert.deepStrictEqual(await ownTopics(kafka), ['orders']);
    await kafka.topics.delete('orders');
    assert.deepStrictEqual(await ownTopics(kafka), []);
  });

  test('messages are produced, read and awaited', async () => {
    const late = kafka.topics.waitFor('messages', 3);
    await kafka.topics.produce('messages', ['a', { key: '7', value: 'b' }, null]);
    assert.strictEqual((await late).length, 3);
    const found = await kafka.topics.messages('messages');
    assert.deepStrictEqual(new Set(found.map(({ value }) => value)), new Set(['a', 'b', null]));
    assert.strictEqual(found.find(({ value }) => value === 'b').key, '7');
    const missing = kafka.topics.waitFor('messages', 4, 20);
    await assert.rejects(missing, { code: 'REQUEST_TIMED_OUT', message: /there are 3/ });
    await kafka.topics.produce('many', Array.from({ length: 2001 }, (_, number) => `${number}`));
    assert.strictEqual((await kafka.topics.messages('many')).length, 2001);
    await kafka.reset();
  });

  test('a group is awaited', async () => {
    assert.deepStrictEqual(await kafka.groups.list(), []);
    await assert.rejects(kafka.groups.waitFor('..', undefined, 20), /'..' was awaited for 20 ms to have state Stable/);
  });

  test('a name is one part of a path', async () => {
    await assert.rejects(kafka.topics.get('a/../b?c'), { code: 'UNKNOWN_TOPIC_OR_PARTITION' });
  });

  test('an error has the code and the reason of the broker', async () => {
    await assert.rejects(kafka.faults.add({ action: 'eror' }), { name: 'MinibrokerError', message: /action.*\? GET / });
    await assert.rejects(kafka.topics.create(''), {
      code: 'INVALID_REQUEST',
      message: 'INVALID_REQUEST: name: must have 1 to 249 characters, not 0. GET /openapi.json describes every body.',
    });
  });

  test('the clock is advanced and stopped', async () => {
    const { offset_ms: offset } = await kafka.clock.get();
    assert.ok((await kafka.clock.advance(11_000)).offset_ms >= offset + 11_000);
    assert.strictEqual((await kafka.clock.freeze()).frozen, true);
    assert.strictEqual((await kafka.clock.freeze(false)).frozen, false);
  });

  test('a rule that never fires is reported, and rules are removed', async () => {
    const fault = await kafka.faults.add({ action: 'error', api: 'Produce', error: 'NOT_LEADER_OR_FOLLOWER' });
    assert.strictEqual((await fault.view()).hits, 0);
    await assert.rejects(fault.wait(1, 1), { code: 'REQUEST_TIMED_OUT' });
    assert.strictEqual(await fault.release(), 0);
    await fault.remove();
    await kafka.faults.add({ action: 'delay', api: 'Fetch', delay_ms: 1 });
    await kafka.faults.clear();
    assert.deepStrictEqual(await kafka.faults.list(), []);
  });

  test('the journal has what happened since its start', async () => {
    await kafka.journal.start();
    await kafka.clock.advance(5);
    assert.strictEqual((await kafka.journal.waitFor({ kind: 'clock' })).kind, 'clock');
    assert.strictEqual((await kafka.journal.entries({ kind: 'clock' })).length, 1);
    await assert.rejects(kafka.journal.waitFor({ api: 'Produce' }, 1), /no entry with/);
    await kafka.journal.start();
    assert.deepStrictEqual(await kafka.journal.entries({ kind: 'clock' }), []);
    await kafka.journal.stop();
  });

  test('reset deletes all topics', async () => {
    await kafka.topics.create('left');
    await kafka.reset();
    assert.deepStrictEqual(await ownTopics(kafka), []);
  });
});

test('a broker that cannot start rejects with its reason', async () => {
  await assert.rejects(Minibroker.start({ settings: { 'num.partition': 3 } }), /did you mean num.partitions/);
});

test('a program that is no broker rejects with what it wrote', async () => {
  const command = [process.execPath, '-e', 'console.error("no broker"); process.exit(3)', '--'];
  await assert.rejects(Minibroker.start({ command }), /status 3\nno broker/);
  await assert.rejects(Minibroker.start({ command: ['/nowhere/minibroker'] }), /ENOENT/);
});

test('a program that is silent is stopped', async () => {
  const command = [process.execPath, '-e', 'process.stdin.resume()', '--'];
  await assert.rejects(Minibroker.start({ command, timeoutMs: 1 }), /not ready after 1 ms/);
});

test('a second stop does nothing', async () => {
  const kafka = await Minibroker.start();
  await kafka.stop();
  await kafka.stop();
  assert.throws(() => process.kill(kafka.pid, 0), { code: 'ESRCH' });
});

test('a broker that listens elsewhere is controlled with its token', async () => {
  const kafka = await Minibroker.start({ args: ['--control', '0.0.0.0:0'] });
  assert.deepStrictEqual(await ownTopics(kafka), []);
  await kafka.stop();
});

describe('the executable', () => {
  const folder = mkdtempSync(join(tmpdir(), 'minibroker-'));
  after(() => rmSync(folder, { recursive: true }));

  function program(name, script = 'exit 0') {
    const path = join(folder, name);
    mkdirSync(join(path, '..'), { recursive: true });
    writeFileSync(path, `#!/bin/sh\n${script}\n`);
    chmodSync(path, 0o755);
    return path;
  }

  test('is searched in MINIBROKER, the package, PATH and a Python, in this order', () => {
    const MINIBROKER = program('chosen');
    const packaged = program('package/bin/minibroker');
    const installed = program('installed/minibroker');
    program('old/python3', 'exit 1');
    const python = program('pythons/python', 'exit 0');
    const PATH = ['old', 'pythons', 'installed'].map((each) => join(folder, each)).join(':');
    const withPackage = join(folder, 'package');
    assert.deepStrictEqual(findCommand({ MINIBROKER, PATH }, withPackage), [MINIBROKER]);
    assert.deepStrictEqual(findCommand({ PATH }, withPackage), [packaged]);
    assert.deepStrictEqual(findCommand({ PATH }, folder), [installed]);
    rmSync(installed);
    assert.deepStrictEqual(findCommand({ PATH }, folder), [python, '-m', 'minibroker']);
  });

  test('that is nowhere is reported with every place and how to install it', () => {
    const python = program('empty/python3', 'exit 1');
    const PATH = join(folder, 'empty');
    const places = [/MINIBROKER \(not set\)/, /bin.minibroker/, `PATH (${PATH})`, python, 'pip install minibroker'];
    try {
      findCommand({ PATH }, folder);
      assert.fail('it was found');
    } catch ({ message }) {
      for (const place of places) assert.ok(message.match(place) || message.includes(place), message);
    }
  });

  test('of MINIBROKER that does not exist is reported', () => {
    assert.throws(() => findCommand({ MINIBROKER: '/nowhere' }), /MINIBROKER is \/nowhere/);
  });
});
