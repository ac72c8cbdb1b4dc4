import kafkajs from "kafkajs"

export async function open(options) {
  const connection = { brokers: [options.bootstrap_servers], logLevel: kafkajs.logLevel.NOTHING }
  if (options.username) {
    // By default sessions are renewed ten seconds before their end, and those of the scenario are shorter.
    connection.reauthenticationThreshold = 1000
    connection.sasl = { mechanism: "plain", username: options.username, password: options.password }
  }
  const kafka = new kafkajs.Kafka(connection)
  const producer = kafka.producer({ idempotent: options.idempotence })
  let consumer
  await producer.connect()
  return {
    async subscribe(topics) {
      consumer = kafka.consumer({
        groupId: options.group,
        sessionTimeout: 6000,
        heartbeatInterval: 1000,
        maxWaitTimeInMs: 50,
      })
      await consumer.connect()
      await consumer.subscribe({ topics, fromBeginning: true })
      await consumer.run({ autoCommitInterval: 100, eachMessage: async () => {} })
    },
    send: ({ topic, partition }, value) => producer.send({ topic, messages: [{ partition, value }] }),
    async close() {
      await consumer?.disconnect()
      await producer.disconnect()
    },
  }
}
