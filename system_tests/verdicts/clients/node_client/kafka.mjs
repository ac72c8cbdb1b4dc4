import { pause } from "./operations.mjs"

// Node.js before 22 lacks this, and the library uses it.
Promise.withResolvers ??= () => {
  const parts = {}
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }))
  return parts
}
const { Consumer, Producer } = await import("@platformatic/kafka")

/** How long the application waits before it consumes again after an error of the stream. */
const PAUSE_MS = 1000

export async function open(options) {
  const connection = { clientId: "verdicts", bootstrapBrokers: [options.bootstrap_servers] }
  if (options.username) {
    const { username, password } = options
    connection.sasl = { mechanism: "PLAIN", username, password }
  }
  const producer = new Producer({ ...connection, idempotent: options.idempotence, acks: -1 })
  producer.on("error", () => {})
  let consumer
  let isClosed = false
  async function consume(topics) {
    while (!isClosed) {
      try {
        const stream = await consumer.consume({
          topics,
          mode: "committed",
          fallbackMode: "earliest",
          autocommit: 100,
          maxWaitTime: 50,
        })
        for await (const _ of stream);
      } catch {
        await pause(PAUSE_MS)
      }
    }
  }
  return {
    async subscribe(topics) {
      consumer = new Consumer({
        ...connection,
        groupId: options.group,
        sessionTimeout: 6000,
        heartbeatInterval: 1000,
      })
      consumer.on("error", () => {})
      consume(topics)
    },
    send: ({ topic, partition }, value) =>
      producer.send({ messages: [{ topic, partition, value: Buffer.from(value) }] }),
    async close() {
      isClosed = true
      await consumer?.close(true)
      await producer.close()
    },
  }
}
