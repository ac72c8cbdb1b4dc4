// Computes the plots of values that the broker samples at equal intervals. Pure: it must never know the
// page. Invariant: a plot ends with the present value, and has a gap where a sample is unknown.

/** Size of a plot in a row. */
export const SMALL = Object.freeze({ width: 120, height: 30 });

/** Size of the plot of a selected group. */
export const LARGE = Object.freeze({ width: 480, height: 110 });

/** Samples that a plot has room for, at least: a few at the right edge are not stretched. */
export const SAMPLES_MIN = 15;

/**
 * The path of `values`, oldest first, and of the present value at the right; `top` is the value at the
 * upper edge, and `span` how many samples there is room for.
 */
export function plot(values, present, { width, height }) {
  const all = [...values, present];
  const span = Math.max(SAMPLES_MIN, values.length);
  const known = all.filter((value) => value !== null);
  const top = Math.max(1, ...known);
  const first = span - values.length;
  let path = "";
  let joined = false;
  all.forEach((value, index) => {
    if (value !== null) {
      const x = round((width * (first + index)) / span);
      const y = round(1 + (height - 2) * (1 - value / top));
      path += `${joined ? "L" : "M"}${x} ${y}`;
    }
    joined = value !== null;
  });
  // A single known value is a line of its own to the right edge.
  if (known.length === 1 && present !== null) path = `M${width - 2} ${path.split(" ")[1]}H${width}`;
  return { path, top, span };
}

function round(number) {
  return Math.round(number * 10) / 10;
}
