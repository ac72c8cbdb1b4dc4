export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds))

export function partitionOf(key) {
  const at = key.lastIndexOf("-")
  return { topic: key.slice(0, at), partition: Number(key.slice(at + 1)) }
}
