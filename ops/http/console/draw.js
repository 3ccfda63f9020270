// Small things that draw: elements, numbers, times, lines. Nothing here knows of the service.

const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** An element with properties, data attributes (an object under `data`) and children: text, never HTML. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  const { data = {}, ...rest } = properties;
  Object.assign(made, rest);
  Object.assign(made.dataset, data);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Text is only touched when it changed, so that a selection and a screen reader are left in peace. */
export function tell(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const brief = (value) =>
  value === null || value === undefined ? "–" : Math.abs(value) < 10_000 ? whole.format(value) : short.format(value);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return value < 172_800 ? `${(value / 3600).toFixed(1)} h` : `${Math.round(value / 86_400)} d`;
}

export const ago = (time) => (time ? `${seconds(Math.max(0, Date.now() / 1000 - time))} ago` : "–");
export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour12: false });

/** A line over a soft area, as wide as its place; null makes a gap. */
export function spark(label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const area = svg.appendChild(document.createElementNS(SVG, "path"));
  area.setAttribute("class", "under");
  const line = svg.appendChild(document.createElementNS(SVG, "path"));
  return { svg, update: (values) => trace(line, area, values) };
}

function trace(line, area, values) {
  const top = Math.max(1, ...values.filter((value) => value !== null));
  const step = 100 / Math.max(1, values.length - 1);
  let path = "", under = "", start = null, x = 0;
  values.forEach((value, at) => {
    if (value === null) {
      if (start !== null) under += `L${x.toFixed(2)} 30L${start.toFixed(2)} 30Z`;
      start = null;
      return;
    }
    x = at * step;
    const point = `${x.toFixed(2)} ${(28.5 - (value / top) * 26).toFixed(2)}`;
    path += `${start === null ? "M" : "L"}${point}`;
    under += `${start === null ? "M" : "L"}${point}`;
    if (start === null) start = x;
  });
  if (start !== null) under += `L${x.toFixed(2)} 30L${start.toFixed(2)} 30Z`;
  line.setAttribute("d", path);
  area.setAttribute("d", under);
}
