// A client of the scenario: it reads options and operations as lines of JSON, and answers each line.
// The library is named by the first argument. An operation that failed is answered with its error.
import { readFileSync } from "node:fs"
import { createInterface } from "node:readline"

import { partitionOf, pause } from "./operations.mjs"

const POLL_MS = 100

const name = process.argv[2]
const { open } = await import(`./${name.replace(/.*\//, "")}.mjs`)
const description = new URL(`./node_modules/${name}/package.json`, import.meta.url)
const { version } = JSON.parse(readFileSync(description, "utf8"))

async function perform(client, asked) {
  if (asked.operation === "subscribe") {
    await client.subscribe([...new Set(asked.keys.map((key) => partitionOf(key).topic))])
  }
  for (const step of asked.steps ?? []) {
    // The libraries call the application with records; a poll only passes time.
    if (step.poll) await pause(POLL_MS)
    else await client.send(partitionOf(step.send), String(step.value))
  }
}

// Libraries report lost connections outside of calls too, and an application goes on.
process.on("unhandledRejection", (error) => console.error(String(error)))
let client
for await (const text of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(text)
  let answer = { ...asked, type: "ok" }
  try {
    if (client) {
      await perform(client, asked)
    } else {
      client = await open(asked)
      answer = { client: `${name} ${version}` }
    }
  } catch (error) {
    if (!client) throw error
    answer = { ...asked, type: "unknown", error: String(error) }
  }
  console.log(JSON.stringify(answer))
}
await client?.close()
process.exit()
