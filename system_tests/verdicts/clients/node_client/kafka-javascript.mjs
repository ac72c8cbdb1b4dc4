import confluent from "@confluentinc/kafka-javascript"

const { Kafka, logLevel } = confluent.KafkaJS

export async function open(options) {
  const connection = { brokers: [options.bootstrap_servers], logLevel: logLevel.NOTHING }
  if (options.username) {
    connection.ssl = false
    connection.sasl = { mechanism: "plain", username: options.username, password: options.password }
  }
  const kafka = new Kafka({ kafkaJS: connection })
  const producer = kafka.producer({
    kafkaJS: { idempotent: options.idempotence },
    "linger.ms": 0,
    "message.timeout.ms": 20000,
  })
  let consumer
  await producer.connect()
  return {
    async subscribe(topics) {
      consumer = kafka.consumer({
        kafkaJS: {
          groupId: options.group,
          fromBeginning: true,
          sessionTimeout: 6000,
          heartbeatInterval: 1000,
          maxWaitTimeInMs: 50,
          autoCommitInterval: 100,
        },
      })
      await consumer.connect()
      await consumer.subscribe({ topics })
      await consumer.run({ eachMessage: async () => {} })
    },
    send: ({ topic, partition }, value) => producer.send({ topic, messages: [{ partition, value }] }),
    async close() {
      await consumer?.disconnect()
      await producer.disconnect()
    },
  }
}
