// Where marks sit. Pure: counts and sizes in, places out; it must never know the page or a
// connection. The invariant: who stays keeps its seat, unless so many have left that the rest
// would be lost in the room; and no two share one.

/** Marks drawn in one processor, at most; beyond it a mark stands for ten, a hundred… */
export const MARKS_PER_PROCESSOR_MAX = 800;

/** Marks drawn in all processors together, at most. */
export const MARKS_MAX = 2400;

/** Distances between marks to choose from, in pixels; the largest that fits is taken. */
export const PITCHES = [26, 22, 18, 15, 12, 10, 8, 7];

/** Rooms of fewer seats are never tidied up. */
const SPARSE_MIN = 40;

/**
 * Seats for `keys`, given who sat where before: a Map of key to seat, the number of seats from
 * the first to the last one taken, and the Set of who came.
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

/** How many connections one mark stands for: 1, 10, 100… so that they stay within the limits. */
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

/** The middle of a seat. */
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
