// Log events, newest first. The events of a takeover are one line that opens; a choice hides what is not severe.

import { clock, count, element, seconds, tell } from "./draw.js";

const SILENT = new Set(["number", "time", "level", "event", "partition", "instance", "exc_info", "attempt", "transactional_id", "member_id"]);
const TAKEOVER = new Set(["assigned", "fencing", "predecessor_fenced", "outcome_resolved", "restoring", "restored", "replayed", "live"]);
/** Seconds between two events of one takeover of several partitions. */
const TOGETHER = 10;
const KEPT = 200;
const LEVELS = ["info", "warning", "error"];

function shownValue(value) {
  if (typeof value === "number") return count(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

function line(told) {
  const rest = Object.entries(told).filter(([name]) => !SILENT.has(name));
  const text = rest.map(([name, value]) => (name === "cause" ? `${value}` : name === "seconds" ? `in ${seconds(value)}` : `${name} ${shownValue(value)}`)).join(", ");
  return element("li", { data: { level: told.level, event: told.event } },
    element("time", { dateTime: new Date(told.time * 1000).toISOString() }, clock(told.time)),
    element("span", { className: "p" }, told.partition === undefined ? "" : `p${told.partition}`),
    element("span", {}, element("b", {}, told.event.replaceAll("_", " ")), text ? ` ${text}` : ""));
}

class Takeover {
  constructor(first) {
    this.started = this.last = first.time;
    this.partitions = new Set();
    this.live = new Set();
    this.slowest = { restored: 0, replayed: 0 };
    this.time = element("time");
    this.where = element("span", { className: "p" });
    this.text = element("span");
    this.inner = element("ol");
    this.node = element("li", { className: "takeover", data: { level: "info", event: "takeover" } },
      element("details", {}, element("summary", {}, this.time, this.where, this.text), this.inner));
  }

  /** Whether an event belongs to this takeover. */
  takes(told) {
    return TAKEOVER.has(told.event) && told.partition !== undefined && told.time - this.last <= TOGETHER
      && !(told.event === "assigned" && this.partitions.has(told.partition));
  }

  add(told) {
    this.last = told.time;
    this.partitions.add(told.partition);
    if (told.event === "live") this.live.add(told.partition);
    if (told.event in this.slowest) this.slowest[told.event] = Math.max(this.slowest[told.event], told.seconds ?? 0);
    this.inner.prepend(line(told));
    const severe = Math.max(LEVELS.indexOf(told.level), LEVELS.indexOf(this.node.dataset.level));
    this.node.dataset.level = LEVELS[severe];
    this.#describe();
  }

  #describe() {
    const numbers = [...this.partitions].sort((a, b) => a - b);
    const done = this.live.size === numbers.length;
    const { restored, replayed } = this.slowest;
    const most = numbers.length === 1 ? "" : "up to ";
    const steps = [restored ? `restore ${most}${seconds(restored)}` : "", replayed ? `replay ${most}${seconds(replayed)}` : ""].filter(Boolean).join(", ");
    const which = `${numbers.length === 1 ? "partition" : "partitions"} ${ranges(numbers)}`;
    tell(this.time, clock(this.last));
    this.time.dateTime = new Date(this.last * 1000).toISOString();
    tell(this.where, numbers.length === 1 ? `p${numbers[0]}` : `${numbers.length} p`);
    this.text.replaceChildren(element("b", {}, done ? "took over" : "taking over"),
      done ? ` ${which} in ${seconds(this.last - this.started)}${steps && `: ${steps}`}` : ` ${which}: ${this.live.size} of ${numbers.length} live`);
  }
}

/** 0, 1, 2, 5 as "0–2, 5". */
export function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    if (found.at(-1)?.[1] === number - 1) found.at(-1)[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}${last === first + 1 ? ", " : "–"}${last}`)).join(", ");
}

export class Timeline {
  constructor(label) {
    this.list = element("ol", { className: "events", tabIndex: 0, ariaLabel: label });
    this.list.setAttribute("role", "list");
    this.empty = element("p", { className: "quiet" }, "no event yet");
    this.node = element("div", {}, this.list, this.empty);
    this.open = null;
    this.filter = element("select", { ariaLabel: "least severity of the events" },
      ...[["info", "all events"], ["warning", "warnings and errors"], ["error", "errors"]].map(([value, text]) => element("option", { value }, text)));
    this.filter.addEventListener("change", () => {
      this.list.dataset.least = this.filter.value;
      this.#count();
    });
  }

  add(events) {
    for (const told of events) {
      if (this.open?.takes(told)) {
        this.open.add(told);
        this.list.prepend(this.open.node);
      } else if (TAKEOVER.has(told.event) && told.partition !== undefined) {
        this.open = new Takeover(told);
        this.open.add(told);
        this.list.prepend(this.open.node);
      } else this.list.prepend(line(told));
    }
    while (this.list.children.length > KEPT) this.list.lastChild.remove();
    if (events.length || !this.list.children.length) this.#count();
  }

  #count() {
    this.empty.hidden = [...this.list.children].some((each) => LEVELS.indexOf(each.dataset.level) >= LEVELS.indexOf(this.list.dataset.least ?? "info"));
    tell(this.empty, this.list.children.length ? "no event of this severity" : "no event yet");
  }
}
