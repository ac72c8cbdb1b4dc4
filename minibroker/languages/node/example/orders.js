'use strict';

/** Send an order, and wait until the broker has acknowledged it. */
async function sendOrder(/** @type {import('kafkajs').Producer} */ producer, /** @type {object} */ order) {
  await producer.send({ topic: 'orders', messages: [{ value: JSON.stringify(order) }] });
}

/** Return the first order of a topic. */
async function firstOrder(/** @type {import('kafkajs').Consumer} */ consumer) {
  await consumer.subscribe({ topic: 'orders', fromBeginning: true });
  return new Promise((resolve) => {
    consumer.run({ eachMessage: async ({ message }) => resolve(JSON.parse(`${message.value}`)) });
  });
}

module.exports = { sendOrder, firstOrder };
