// The parts of the page. Each is made once and then updated in place, so focus and scrolling stay where they are.

import { ago, brief, bytes, clock, count, element, seconds, spark, tell } from "./draw.js";

const SILENT = new Set(["number", "time", "level", "event", "partition", "instance", "exc_info", "attempt", "transactional_id", "member_id"]);
const by = (id) => document.getElementById(id);

/** Rows `name: value` of a definition list, updated by name. */
function facts(list, rows) {
  if (list.children.length !== rows.length * 2) {
    list.replaceChildren(...rows.flatMap(([name]) => [element("dt", {}, name), element("dd")]));
  }
  rows.forEach(([name, value], at) => {
    tell(list.children[at * 2], name);
    tell(list.children[at * 2 + 1], value);
  });
}

function bar() {
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

const phaseOf = (name) => element("span", { className: "phase" },
  element("span", { className: "dot", ariaHidden: "true" }), element("span", {}, name));

class Tile {
  constructor(number) {
    this.phase = phaseOf("");
    this.list = element("dl");
    this.bar = bar();
    this.cause = element("p", { className: "cause" });
    this.line = spark(`records per second of partition ${number}, last minutes`);
    this.link = element("a", { className: "tile", href: `#/partition/${number}` },
      element("span", { className: "top" }, element("span", { className: "number" }, `Partition ${number}`), this.phase),
      this.list, this.bar.whole, this.cause, this.line.svg);
    this.node = element("li", { data: { partition: number } }, this.link);
  }

  update(partition, series) {
    this.node.dataset.phase = partition.phase;
    tell(this.phase.lastChild, partition.phase);
    facts(this.list, [
      ["lag", count(partition.lag)],
      ["records/s", brief(series.rate.at(-1))],
      ["position", count(partition.position)],
      ["keys", brief(partition.live?.commit_record.keys ?? partition.restore?.keys)],
    ]);
    this.bar.update(partition.restore);
    tell(this.cause, partition.phase === "failed" ? partition.cause ?? "" : "");
    this.line.update(series.rate);
  }
}

/** Partitions of the input that another instance owns, or no instance. */
function elsewhere(number, member) {
  const where = element("p", { className: "where" });
  if (member?.url) where.append("at ", element("a", { href: `${member.url}/` }, member.url));
  else where.append(member ? `at ${member.client || member.host}` : "no instance holds it");
  return element("li", { data: { partition: number, phase: member ? "elsewhere" : "nobody" } },
    element("div", { className: "tile away" }, element("span", { className: "top" },
      element("span", { className: "number" }, `Partition ${number}`), phaseOf(member ? "elsewhere" : "nobody")), where));
}

export class Tiles {
  constructor() {
    this.here = new Map();
    this.others = new Map();
  }

  update(data, series) {
    const present = new Map(data.status.partitions.map((each) => [each.partition, each]));
    const total = Math.max(data.partitions, ...[...present.keys()].map((number) => number + 1));
    const nodes = [];
    for (let number = 0; number < total; number++) {
      const partition = present.get(number);
      if (!partition) this.here.delete(number);
      nodes.push(partition ? this.#mine(number, partition, series(number)) : this.#other(number, data.members));
    }
    const list = by("tiles");
    if (nodes.length !== list.children.length || nodes.some((node, at) => list.children[at] !== node)) {
      const focused = document.activeElement?.closest?.("[data-partition]")?.dataset.partition;
      list.replaceChildren(...nodes);
      if (focused !== undefined) list.querySelector(`[data-partition="${focused}"] a`)?.focus();
    }
    this.#legend([...list.children].map((node) => node.dataset.phase));
  }

  #mine(number, partition, series) {
    if (!this.here.has(number)) this.here.set(number, new Tile(number));
    const tile = this.here.get(number);
    tile.update(partition, series);
    return tile.node;
  }

  #other(number, members) {
    const member = members.find((each) => each.partitions.includes(number));
    const known = this.others.get(number);
    if (known?.client === (member?.client ?? "")) return known.node;
    const node = elsewhere(number, member);
    this.others.set(number, { client: member?.client ?? "", node });
    return node;
  }

  #legend(phases) {
    const text = [...new Set(phases)].map((phase) => [phase, phases.filter((each) => each === phase).length]);
    const told = text.map(([phase, number]) => `${number} ${phase}`).join();
    if (by("legend").dataset.told === told) return;
    by("legend").dataset.told = told;
    by("legend").replaceChildren(...text.map(([phase, number]) =>
      element("li", { data: { phase } }, element("span", { className: "dot", ariaHidden: "true" }), `${number} ${phase}`)));
  }
}

export function totals(data, rate) {
  const partitions = data.status.partitions;
  const sum = (pick) => partitions.reduce((before, each) => before + (pick(each) ?? 0), 0);
  const known = partitions.some((each) => each.lag !== null);
  const rows = [
    ["Partitions live here", `${partitions.filter((each) => each.phase === "live").length}`, `of ${partitions.length}`],
    ["Records per second", brief(rate), ""],
    ["Lag", known ? brief(sum((each) => each.lag)) : "–", "records"],
    ["Keys of state", brief(sum((each) => each.live?.commit_record.keys ?? each.restore?.keys)), bytes(sum((each) => each.live?.bytes))],
  ];
  if (sum((each) => each.hidden) > 0) rows.push(["Behind open transactions", brief(sum((each) => each.hidden)), "records"]);
  const copies = data.status.standbys ?? [];
  const oldest = Math.max(0, ...copies.map((each) => each.age ?? 0));
  if (copies.length) rows.push(["Copies of others' partitions", `${copies.filter((each) => !each.loading).length}`, `of ${copies.length}, ${seconds(oldest)} old at most`]);
  const list = by("totals");
  if (list.children.length !== rows.length) {
    list.replaceChildren(...rows.map(() => element("div", {}, element("dt"), element("dd", {}, element("span"), " ", element("small")))));
  }
  rows.forEach(([name, value, unit], at) => {
    const [term, figure] = list.children[at].children;
    tell(term, name);
    tell(figure.firstChild, value);
    tell(figure.lastChild, unit);
  });
}

function event(told) {
  const rest = Object.entries(told).filter(([name]) => !SILENT.has(name));
  const text = rest.map(([name, value]) => (name === "cause" ? `${value}` : name === "seconds" ? `in ${seconds(value)}` : `${name} ${showValue(value)}`)).join(", ");
  return element("li", { data: { level: told.level, event: told.event } },
    element("time", { dateTime: new Date(told.time * 1000).toISOString() }, clock(told.time)),
    element("span", { className: "p" }, told.partition === undefined ? "" : `p${told.partition}`),
    element("span", {}, element("b", {}, told.event.replaceAll("_", " ")), text ? ` ${text}` : ""));
}

function showValue(value) {
  if (typeof value === "number") return count(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Newest first. */
export function events(list, told) {
  list.prepend(...told.map(event).reverse());
  while (list.children.length > 200) list.lastChild.remove();
}

export function instances(data) {
  const told = JSON.stringify(data.members);
  if (by("instances").dataset.told === told) return;
  by("instances").dataset.told = told;
  const rows = data.members.map((member) => {
    const mine = member.url !== "" && member.url === data.status.url;
    const name = member.url && !mine ? element("a", { href: `${member.url}/` }, member.url) : member.url || member.client;
    const held = member.partitions.length ? `partitions ${member.partitions.join(", ")}` : "idle";
    return element("li", {}, element("div", {}, name, mine ? " (this one)" : ""),
      element("div", { className: "quiet" }, `${held} · ${member.host}`));
  });
  by("instances").replaceChildren(...(rows.length ? rows : [element("li", { className: "quiet" }, "the group has not answered yet")]));
}

/** One partition's own page. */
export class Page {
  constructor(number, past) {
    this.number = number;
    this.phase = phaseOf("");
    this.bar = bar();
    this.cause = element("p", { className: "trouble", hidden: true });
    this.lists = ["Now", "Last commit record", "Takeover"].map((title) => [title, element("dl", { className: "facts" })]);
    this.charts = [["Lag", "lag"], ["Records per second", "rate"], ["Mailbox", "mailbox"]].map(([title, name]) => {
      const line = spark(`${title} of partition ${number}, last minutes`);
      const figure = element("span");
      return { name, line, figure, card: element("div", { className: "card chart" }, element("h3", {}, title, figure), line.svg) };
    });
    this.fulls = element("tbody");
    this.events = element("ol", { className: "events" });
    events(this.events, past.filter((each) => each.partition === number));
    const head = element("tr", {}, ...["manifest", "first", "through"].map((name) => element("th", { scope: "col" }, name)));
    this.node = element("div", { data: { partition: number } },
      element("p", {}, element("a", { href: "#/" }, "← all partitions")),
      element("div", { className: "heading" }, element("h2", { tabIndex: -1 }, `Partition ${number}`, this.phase)),
      this.cause, this.bar.whole,
      element("div", { className: "details" }, ...this.charts.map((chart) => chart.card)),
      element("div", { className: "details" }, ...this.lists.map(([title, list]) =>
        element("div", { className: "card" }, element("h3", {}, title), list))),
      element("div", { className: "details loose" },
        element("div", { className: "card" }, element("h3", {}, "Full snapshots in the commit record"),
          element("table", {}, element("thead", {}, head), this.fulls)),
        element("div", { className: "card" }, element("h3", {}, "Its events"), this.events)));
  }

  update(partition, series, told) {
    events(this.events, told.filter((each) => each.partition === this.number));
    this.node.dataset.phase = partition?.phase ?? "elsewhere";
    tell(this.phase.lastChild, partition?.phase ?? "not here");
    this.bar.update(partition?.restore);
    this.cause.hidden = !partition?.cause;
    tell(this.cause, partition?.cause ?? "");
    for (const { name, line, figure } of this.charts) {
      line.update(series[name]);
      tell(figure, brief(series[name].at(-1)));
    }
    if (partition) this.#facts(partition, partition.live?.commit_record);
  }

  #facts(partition, mark) {
    const [now, last, takeover] = this.lists.map(([, list]) => list);
    facts(now, [["position", count(partition.position)], ["end of the input", count(partition.end)], ["lag", count(partition.lag)],
      ["behind open transactions", count(partition.hidden)], ["in the mailbox", count(partition.mailbox)],
      ["records since live", count(partition.live?.records)], ["in this phase since", ago(partition.since)],
      ["pending side effects", count(partition.live?.effects)], ["the oldest of them", ago(partition.live?.effects_since)],
      ["next timer", partition.live?.timer ? new Date(1000 * partition.live.timer).toISOString() : "–"]]);
    facts(last, [["transaction", count(mark?.n)], ["keys", count(mark?.keys)], ["state, about", bytes(partition.live?.bytes)],
      ...(partition.live?.blocked_keys ? [["keys blocked by dead letters", count(partition.live.blocked_keys)]] : []),
      ...(partition.live?.later ? [["records to be retried later", count(partition.live.later)]] : []),
      ["changelog since the full snapshot", bytes(partition.live?.since_full)], ["written", ago(mark?.time)],
      ["state generation", mark?.lineage ?? "–"], ["digest", mark?.digest ?? "–"]]);
    facts(takeover, [["fence", seconds(partition.timings.fence)], ["restore", seconds(partition.timings.restore)],
      ["replay", seconds(partition.timings.replay)], ["a restore now, predicted", seconds(partition.restore_predicted)]]);
    const rows = mark?.fulls ?? [];
    const known = JSON.stringify(rows);
    if (this.fulls.dataset.told === known) return;
    this.fulls.dataset.told = known;
    this.fulls.replaceChildren(...(rows.length ? rows.map((full) => element("tr", {}, ...[full.offset, full.first, full.through]
      .map((value) => element("td", {}, count(value))))) : [element("tr", {}, element("td", { colSpan: 3 }, "none yet"))]));
  }
}
