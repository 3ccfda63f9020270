// Small things that draw: elements, numbers, times, lists, tables.

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

/** A time as ISO 8601 text. A date has no text from the year 275,760 on, and a timer may be due then. */
export function moment(time) {
  const date = new Date(time * 1000);
  return Number.isNaN(date.getTime()) ? `${time} s after 1970` : date.toISOString().replace(".000Z", "Z");
}

export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour12: false });

/** Rows `name: value` of a definition list, updated by place. */
export function facts(list, rows) {
  if (list.children.length !== rows.length * 2) {
    list.replaceChildren(...rows.flatMap(([name]) => [element("dt", {}, name), element("dd")]));
  }
  rows.forEach(([name, value], at) => {
    tell(list.children[at * 2], name);
    tell(list.children[at * 2 + 1], value);
  });
}

/** A table with a head; cells are text or elements. */
export function table(caption, head, rows) {
  const cells = (kind, row) => element("tr", {}, ...row.map((cell) => element(kind, kind === "th" ? { scope: "col" } : {}, cell)));
  return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption },
    element("table", {}, element("caption", { className: "hidden" }, caption), element("thead", {}, cells("th", head)),
      element("tbody", {}, ...rows.map((row) => cells("td", row)))));
}

export const phaseOf = (name) => element("span", { className: "phase" },
  element("span", { className: "dot", ariaHidden: "true" }), element("span", {}, name));

/** The progress of a restore or a replay. */
export function progress() {
  const [step, left] = [element("span"), element("span")];
  const track = element("progress", { max: 1, ariaLabel: "progress of the restore" });
  const whole = element("div", { className: "progress" }, element("div", {}, step, left), track);
  return {
    whole,
    update(restore) {
      whole.hidden = !restore;
      if (!restore) return;
      const size = restore.end - restore.begin;
      track.value = size > 0 ? Math.min(1, (restore.position - restore.begin) / size) : 1;
      tell(step, `${restore.step} ${Math.round(track.value * 100)} %`);
      tell(left, restore.left === null ? `${count(restore.keys)} keys` : `${seconds(restore.left)} left`);
    },
  };
}
