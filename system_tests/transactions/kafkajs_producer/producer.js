// A transactional producer with kafkajs that is driven by lines of words, one command each, and
// answers each with one line: "ok", or the type or text of the error.
//
//   node producer.js SERVERS TRANSACTIONAL_ID TIMEOUT_MS
//
// kafkajs asks for its producer id when the first transaction begins, not when it connects.
"use strict"

const readline = require("node:readline")
const { Kafka, logLevel } = require("kafkajs")

const [servers, transactionalId, timeout] = process.argv.slice(2)
const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.NOTHING })
const producer = kafka.producer({
  transactionalId,
  transactionTimeout: Number(timeout),
  idempotent: true,
  maxInFlightRequests: 1,
})
let transaction

const commands = {
  init: () => producer.connect(),
  begin: async () => {
    transaction = await producer.transaction()
  },
  send: (topic, partition, value) =>
    transaction.send({ topic, acks: -1, messages: [{ partition: Number(partition), value }] }),
  offsets: (group, topic, partition, offset) =>
    transaction.sendOffsets({
      consumerGroupId: group,
      topics: [{ topic, partitions: [{ partition: Number(partition), offset }] }],
    }),
  commit: () => transaction.commit(),
  abort: () => transaction.abort(),
}

const answer = async ([command, ...words]) => {
  try {
    await commands[command](...words)
    return "ok"
  } catch (error) {
    return (error.type || error.message).replaceAll("\n", " ")
  }
}

const main = async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(await answer(line.split(" ")))
  }
  process.exit(0)
}

main()
