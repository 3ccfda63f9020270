// A chart over time: axis, unit, maximum, and the value under the pointer or the arrow keys.

import { brief, clock, element, tell } from "./draw.js";

const SVG = "http://www.w3.org/2000/svg";
const minutes = (value) => (value < 3600 ? `${value / 60} min` : `${value / 3600} h`);
const WIDTH = 600, HEIGHT = 120;
/** Seconds that a chart can span. */
export const SPANS = [[300, "5 min"], [3_600, "1 h"], [21_600, "6 h"], [86_400, "24 h"]];

const shape = (name, attributes = {}) => {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
};

/** The next 1, 2 or 4 times a power of ten, at least 2: a maximum that reads well on an axis, and so does its half. */
function ceiling(value) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return Math.max(2, unit * [1, 2, 4, 10].find((step) => step * unit >= value));
}

/** Paths of the line and of the area under it; null makes a gap. `points` are [x, y] of the drawing. */
function paths(points) {
  let line = "", area = "", open = null, last = null;
  const close = () => { if (open !== null) area += `L${last} ${HEIGHT}L${open} ${HEIGHT}Z`; };
  for (const point of points) {
    if (point === null) { close(); open = null; continue; }
    const [x, y] = point.map((value) => value.toFixed(1));
    line += `${open === null ? "M" : "L"}${x} ${y}`;
    area += `${open === null ? "M" : "L"}${x} ${y}`;
    if (open === null) open = x;
    last = x;
  }
  close();
  return [line, area];
}

/** A small line without an axis, for a tile. */
export function spark(label) {
  const svg = shape("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  const area = svg.appendChild(shape("path", { class: "under" })), line = svg.appendChild(shape("path"));
  return {
    svg,
    update(values) {
      const top = Math.max(1, ...values.filter((value) => value !== null));
      const step = WIDTH / Math.max(1, values.length - 1);
      const [drawn, under] = paths(values.map((value, at) => (value === null ? null : [at * step, HEIGHT - 6 - (value / top) * (HEIGHT - 16)])));
      line.setAttribute("d", drawn);
      area.setAttribute("d", under);
    },
  };
}

export class Chart {
  /** `unit` is said with each value; an empty one says that the values are counts of records. */
  constructor(title, unit, about) {
    this.title = title;
    this.unit = unit;
    this.points = [];
    this.figure = element("span");
    this.svg = shape("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: "0" });
    for (const y of [0, HEIGHT / 2, HEIGHT]) this.svg.append(shape("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }));
    this.area = this.svg.appendChild(shape("path", { class: "under" }));
    this.line = this.svg.appendChild(shape("path"));
    this.cursor = this.svg.appendChild(shape("line", { class: "cursor", y1: 0, y2: HEIGHT, visibility: "hidden" }));
    this.marks = [element("span"), element("span"), element("span")];
    this.times = [element("span"), element("span"), element("span")];
    this.node = element("div", { className: "card chart-card" },
      element("h3", {}, `${title}${about ? ` ${about}` : ""}`, this.figure),
      element("div", { className: "plot" }, element("div", { className: "marks", ariaHidden: "true" }, ...this.marks), this.svg),
      element("div", { className: "times", ariaHidden: "true" }, ...this.times));
    this.svg.addEventListener("pointermove", (event) => this.#point((event.offsetX / this.svg.clientWidth) * WIDTH));
    this.svg.addEventListener("pointerleave", () => this.#leave());
    this.svg.addEventListener("blur", () => this.#leave());
    this.svg.addEventListener("keydown", (event) => this.#key(event));
  }

  /** `points` are [time, value or null], oldest first; `span` is in seconds. */
  update(points, span) {
    const now = Date.now() / 1000;
    const known = points.filter(([, value]) => value !== null);
    this.highest = Math.max(0, ...known.map(([, value]) => value));
    this.top = ceiling(this.highest);
    this.points = points.map(([time, value]) => ({ time, value, x: WIDTH - ((now - time) / span) * WIDTH }));
    const [line, area] = paths(this.points.filter(({ x }) => x >= 0).map(({ x, value }) => (value === null ? null : [x, HEIGHT - (value / this.top) * HEIGHT])));
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
    [this.top, this.top / 2, 0].forEach((value, at) => tell(this.marks[at], brief(value)));
    [`−${minutes(span)}`, `−${minutes(span / 2)}`, "now"].forEach((text, at) => tell(this.times[at], text));
    if (this.at === undefined) this.#summary(known.at(-1)?.[1]);
  }

  #summary(value) {
    const text = value === undefined || value === null ? "–" : `${brief(value)}${this.unit && ` ${this.unit}`} · highest ${brief(this.highest)}`;
    tell(this.figure, text);
    this.svg.setAttribute("aria-label", `${this.title}: ${text}`);
  }

  #point(x) {
    const known = this.points.filter(({ value }) => value !== null);
    if (!known.length) return;
    this.#show(known.reduce((best, each) => (Math.abs(each.x - x) < Math.abs(best.x - x) ? each : best)));
  }

  #show(point) {
    this.at = point.time;
    this.cursor.setAttribute("x1", point.x);
    this.cursor.setAttribute("x2", point.x);
    this.cursor.setAttribute("visibility", "visible");
    tell(this.figure, `${brief(point.value)}${this.unit && ` ${this.unit}`} at ${clock(point.time)}`);
    this.svg.setAttribute("aria-label", `${this.title}: ${this.figure.textContent}`);
  }

  #leave() {
    this.at = undefined;
    this.cursor.setAttribute("visibility", "hidden");
    this.#summary(this.points.findLast(({ value }) => value !== null)?.value);
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const known = this.points.filter(({ value, x }) => value !== null && x >= 0);
    if (!step || !known.length) return;
    event.preventDefault();
    const from = this.at === undefined ? known.length : known.findIndex(({ time }) => time >= this.at);
    this.#show(known[Math.min(known.length - 1, Math.max(0, from + step))]);
  }
}

/** A choice of the span; `chosen(seconds)` hears of it. */
export function spanChoice(current, chosen) {
  const select = element("select", { ariaLabel: "time that the charts span" }, ...SPANS.map(([value, text]) => element("option", { value, selected: value === current }, text)));
  select.addEventListener("change", () => chosen(Number(select.value)));
  return select;
}
