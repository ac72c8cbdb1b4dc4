// An idempotent producer of @platformatic/kafka that sends messages at once, each on its own, and
// writes one line: the offset of each acknowledgement.
//
//   node producer.mjs PACKAGE SERVERS TOPIC CLIENT_ID MESSAGES
//
// PACKAGE is "defective" or "repaired", see package.json.
// Node.js before 22 has no Promise.withResolvers, which the package uses.
Promise.withResolvers ??= () => {
  const parts = {}
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }))
  return parts
}

const [name, servers, topic, clientId, messages] = process.argv.slice(2)
const { Producer, ProduceAcks } = await import(name)

const producer = new Producer({
  clientId,
  bootstrapBrokers: servers.split(","),
  idempotent: true,
  acks: ProduceAcks.ALL,
})
const send = (_, number) =>
  producer.send({
    messages: [{ topic, partition: 0, value: Buffer.from(`message ${number}`) }],
    idempotent: true,
    acks: ProduceAcks.ALL,
  })
await send(null, 0)
const results = await Promise.all(Array.from({ length: Number(messages) }, send))
console.log(results.map((result) => String(result.offsets[0].offset)).join(" "))
await producer.close()
