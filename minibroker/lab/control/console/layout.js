// Positions of marks. Pure: it maps counts and sizes to positions, and must never know the page or a
// connection. Invariant: an open connection keeps its seat, unless so many have closed that the
// remaining ones are moved together; and no two share one.

/** Marks drawn in one processor, at most; beyond it a mark represents ten, a hundred… */
export const MARKS_PER_PROCESSOR_MAX = 800;

/** Marks drawn in all processors together, at most. */
export const MARKS_MAX = 2400;

/** Possible distances between marks, in pixels; the largest that fits is used. */
export const PITCHES = [26, 22, 18, 15, 12, 10, 8, 7];

/** Minimum number of seats for moving marks together. */
const SPARSE_MIN = 40;

/**
 * Seats for `keys`, given the previous seats: a Map of key to seat, the number of seats up to the
 * last used one, and the Set of new keys.
 */
export function seat(before, keys) {
  const seats = new Map();
  const taken = new Set();
  for (const key of keys) {
    const kept = before.get(key);
    if (kept !== undefined) {
      seats.set(key, kept);
      taken.add(kept);
    }
  }
  const arrivals = new Set();
  let free = 0;
  for (const key of keys) {
    if (seats.has(key)) continue;
    while (taken.has(free)) free += 1;
    seats.set(key, free);
    taken.add(free);
    arrivals.add(key);
  }
  const extent = taken.size ? Math.max(...taken) + 1 : 0;
  if (extent <= SPARSE_MIN || extent <= 2 * seats.size) return { seats, extent, arrivals };
  return { seats: closeRanks(seats), extent: seats.size, arrivals };
}

function closeRanks(seats) {
  const inOrder = [...seats].sort((one, other) => one[1] - other[1]);
  return new Map(inOrder.map(([key], index) => [key, index]));
}

/** How many connections one mark represents: 1, 10, 100… so that they stay within the limits. */
export function factorFor(extent, processors) {
  const most = Math.min(MARKS_PER_PROCESSOR_MAX, Math.floor(MARKS_MAX / Math.max(processors, 1)));
  let factor = 1;
  while (Math.ceil(extent / factor) > most) factor *= 10;
  return factor;
}

/**
 * The largest pitch at which `marks` fit into the room, the columns it gives, and the height that
 * is needed: more than the room's only if not even the smallest pitch fits.
 */
export function pack(marks, width, height) {
  const fitting = PITCHES.find((pitch) => columnsOf(width, pitch) * Math.floor(height / pitch) >= marks);
  const pitch = fitting ?? PITCHES.at(-1);
  const columns = columnsOf(width, pitch);
  return { pitch, columns, height: Math.ceil(marks / columns) * pitch };
}

function columnsOf(width, pitch) {
  return Math.max(1, Math.floor(width / pitch));
}

/** The center of a seat. */
export function place(index, { pitch, columns }) {
  return {
    x: ((index % columns) + 0.5) * pitch,
    y: (Math.floor(index / columns) + 0.5) * pitch,
  };
}

/** The seat at a point, which may be an empty one, or beyond the last. */
export function seatAt(x, y, { pitch, columns }) {
  const column = Math.floor(x / pitch);
  if (column < 0 || column >= columns || y < 0) return -1;
  return Math.floor(y / pitch) * columns + column;
}
