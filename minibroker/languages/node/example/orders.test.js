'use strict';

const assert = require('node:assert');
const { after, before, beforeEach, test } = require('node:test');
const { Kafka, logLevel } = require('kafkajs');
const { Minibroker } = require('minibroker');
const { firstOrder, sendOrder } = require('./orders.js');

/** @type {Minibroker} */ let kafka;
/** @type {Kafka} */ let client;

before(async () => {
  kafka = await Minibroker.start({ settings: { 'group.initial.rebalance.delay.ms': 0 } });
  client = new Kafka({ brokers: kafka.brokers, logLevel: logLevel.NOTHING, retry: { initialRetryTime: 10 } });
});
after(() => kafka.stop());

beforeEach(async () => {
  await kafka.reset();
  await kafka.topics.create('orders');
});

test('an order arrives', async () => {
  const producer = client.producer();
  const consumer = client.consumer({ groupId: 'billing' });
  await Promise.all([producer.connect(), consumer.connect()]);
  await sendOrder(producer, { id: 7 });
  assert.deepStrictEqual(await firstOrder(consumer), { id: 7 });
  await Promise.all([producer.disconnect(), consumer.disconnect()]);
});

test('an order is sent again if the first answer is an error', async () => {
  const fault = await kafka.faults.add({ action: 'error', api: 'Produce', error: 'NOT_LEADER_OR_FOLLOWER', first: 1 });
  await kafka.journal.start();
  const producer = client.producer();
  await producer.connect();
  await sendOrder(producer, { id: 8 });
  await producer.disconnect();
  await fault.wait();
  const requests = await kafka.journal.entries({ kind: 'request', api: 'Produce' });
  assert.strictEqual(requests.length, 2);
  await fault.remove();
});

test('an order is deleted when its retention time has passed', async () => {
  await kafka.topics.create('short', { configs: { 'retention.ms': '1000' } });
  const producer = client.producer();
  await producer.connect();
  await producer.send({ topic: 'short', messages: [{ value: 'old' }] });
  await producer.disconnect();
  await kafka.clock.advance(600_000); // Retention is checked every five minutes.
  const admin = client.admin();
  await admin.connect();
  let low = '0';
  while (low === '0') [{ low }] = await admin.fetchTopicOffsets('short');
  assert.strictEqual(low, '1');
  await admin.disconnect();
});
