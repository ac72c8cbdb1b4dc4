// Animates marks: an accepted connection moves from its listener to its seat, a rejected one falls
// back. Owns the canvas over the stage and its frames; it must never know a connection. Invariant: at
// most IN_THE_AIR_MAX marks move, no frame is drawn if none does, and none moves if the system asks
// for reduced motion.

/** Marks that move at the same time; more are not drawn, but counted in the figures. */
export const IN_THE_AIR_MAX = 240;

/** From the listener to the seat. */
export const FLIGHT_MS = 620;

const FALL_MS = 520;
const TAIL = 0.06;
const TAIL_PIECES = 5;
const RADIUS = 3.4;

export class Flights {
  constructor(canvas) {
    this.canvas = canvas;
    this.ink = canvas.getContext("2d");
    this.air = [];
    this.drawing = false;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
  }

  /** Whether marks may move at all. */
  get moves() {
    return !this.still.matches;
  }

  resize(width, height) {
    const scale = window.devicePixelRatio;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.ink.setTransform(scale, 0, 0, scale, 0, 0);
  }

  /** Move a mark along `points` after `delay` ms; `end` is `land`, `dissolve` or `fall`. */
  launch(points, delay, end) {
    if (!this.moves || this.air.length >= IN_THE_AIR_MAX) return;
    const lengths = [0];
    for (let index = 1; index < points.length; index += 1) {
      const [from, to] = [points[index - 1], points[index]];
      lengths.push(lengths.at(-1) + Math.hypot(to.x - from.x, to.y - from.y));
    }
    this.air.push({ points, lengths, end, begins: performance.now() + delay });
    if (this.drawing) return;
    this.drawing = true;
    const style = getComputedStyle(this.canvas);
    this.colours = {
      land: style.getPropertyValue("--busy"),
      dissolve: style.getPropertyValue("--busy"),
      fall: style.getPropertyValue("--refused"),
    };
    requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.air = this.air.filter((flight) => this.step(flight, now - flight.begins));
    this.drawing = this.air.length > 0;
    if (this.drawing) requestAnimationFrame((later) => this.frame(later));
  }

  /** Draw one mark; return whether it is still moving. */
  step(flight, age) {
    if (age < 0) return true;
    this.ink.fillStyle = this.colours[flight.end];
    this.ink.strokeStyle = this.colours[flight.end];
    const way = Math.min(1, age / FLIGHT_MS);
    if (way < 1) {
      this.streak(flight, ease(way));
      return true;
    }
    if (flight.end === "land") return false;
    const after = (age - FLIGHT_MS) / FALL_MS;
    if (after >= 1) return false;
    const at = along(flight, 1);
    this.ink.globalAlpha = 1 - after;
    if (flight.end === "fall") this.dot(at.x - 26 * after, at.y + 64 * after * after, RADIUS);
    else this.dot(at.x, at.y, RADIUS * (1 + after));
    this.ink.globalAlpha = 1;
    return true;
  }

  streak(flight, way) {
    const head = along(flight, way);
    this.ink.globalAlpha = 0.35;
    this.ink.lineWidth = RADIUS * 1.2;
    this.ink.lineCap = "round";
    this.ink.beginPath();
    this.ink.moveTo(head.x, head.y);
    for (let piece = 1; piece <= TAIL_PIECES; piece += 1) {
      const { x, y } = along(flight, Math.max(0, way - (TAIL * piece) / TAIL_PIECES));
      this.ink.lineTo(x, y);
    }
    this.ink.stroke();
    this.ink.globalAlpha = 1;
    this.dot(head.x, head.y, RADIUS);
  }

  dot(x, y, radius) {
    this.ink.beginPath();
    this.ink.arc(x, y, radius, 0, 2 * Math.PI);
    this.ink.fill();
  }
}

function ease(way) {
  return way < 0.5 ? 2 * way * way : 1 - 2 * (1 - way) * (1 - way);
}

function along({ points, lengths }, way) {
  const wanted = way * lengths.at(-1);
  const next = Math.max(1, lengths.findIndex((length) => length >= wanted));
  const span = lengths[next] - lengths[next - 1] || 1;
  const part = Math.min(1, Math.max(0, (wanted - lengths[next - 1]) / span));
  const [from, to] = [points[next - 1], points[next]];
  return { x: from.x + (to.x - from.x) * part, y: from.y + (to.y - from.y) * part };
}
