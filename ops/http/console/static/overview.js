// The whole group: every partition of the input, whichever instance owns it, those in trouble first.

import { Chart, spark } from "./charts.js";
import { brief, bytes, count, element, facts, phaseOf, progress, seconds, tell } from "./draw.js";
import { ranges } from "./timeline.js";

const by = (id) => document.getElementById(id);
/** More partitions than this are drawn as small cells. */
const DENSE = 24;
const KEPT = 150;
const RANK = { failed: 0, unassigned: 1, unknown: 1, aborting: 2, draining: 2, assigned: 3, fencing: 3, restoring: 3, replaying: 3 };
const rank = (each) => RANK[each.phase] ?? 4;

/** Every partition of the input with its owner; `here` if this instance owns it, `phase` unknown if its owner does not answer. */
export function group(data) {
  const found = new Map();
  for (const other of data.others) {
    for (const each of other.partitions) found.set(each.partition, { ...each, here: false, owner: other });
  }
  for (const each of data.status.partitions) found.set(each.partition, { ...each, here: true, owner: null });
  const total = Math.max(data.partitions, ...[...found.keys()].map((number) => number + 1));
  for (let number = 0; number < total; number++) {
    if (!found.has(number)) found.set(number, absent(number, data));
  }
  return [...found.values()].sort((one, other) => rank(one) - rank(other) || one.partition - other.partition);
}

function absent(number, data) {
  const member = data.members.find((each) => each.partitions.includes(number));
  const base = { partition: number, here: false, position: null, lag: null, restore: null, live: null };
  if (!member) return { ...base, phase: "unassigned", owner: null, cause: data.members.length ? "no instance owns it" : "the group has not answered yet" };
  const other = data.others.find((each) => each.client === member.client && each.url === member.url);
  const owner = other ?? { client: member.client, host: member.host, url: member.url };
  return { ...base, phase: "unknown", owner, cause: other?.trouble || "its instance has not answered yet" };
}

/** Name of the instance that owns a partition. */
export const ownerOf = (partition) => partition.owner && (partition.owner.url || partition.owner.client || partition.owner.host);

/** Rates of other instances' partitions, as far back as this page is open. */
export class OthersHistory {
  constructor() { this.samples = new Map(); }

  note(partitions) {
    const now = Date.now() / 1000;
    for (const each of partitions.filter((one) => !one.here)) {
      const list = this.samples.get(each.partition) ?? [];
      const before = list.at(-1), records = each.live?.records ?? null;
      // The answers are cached for two seconds: the same number twice is one sample.
      if (before && before.records === records && now - before.time < 3) continue;
      const rate = before && records !== null && before.records !== null && records >= before.records ? (records - before.records) / (now - before.time) : null;
      this.samples.set(each.partition, [...list, { time: now, records, rate, lag: each.lag }].slice(-KEPT));
    }
    for (const each of partitions.filter((one) => one.here)) this.samples.delete(each.partition);
  }

  of(number) { return this.samples.get(number) ?? []; }
}

class Tile {
  constructor(number) {
    this.phase = phaseOf("");
    this.list = element("dl");
    this.bar = progress();
    this.cause = element("p", { className: "cause" });
    this.where = element("p", { className: "where" });
    this.line = spark(`records per second of partition ${number}, last minutes`);
    this.small = element("span", { className: "small" });
    this.link = element("a", { className: "tile", href: `#/partition/${number}` },
      element("span", { className: "top" }, element("span", { className: "number" }, element("span", {}, "Partition "), `${number}`), this.phase),
      this.small, this.list, this.bar.whole, this.cause, this.where, this.line.svg);
    this.node = element("li", { data: { partition: number } }, this.link);
  }

  update(partition, rates) {
    const where = partition.here ? "" : ownerOf(partition) ? `at ${ownerOf(partition)}` : "";
    this.node.dataset.phase = partition.phase;
    this.node.dataset.here = partition.here;
    this.link.title = [`partition ${partition.partition}: ${partition.phase}`, `lag ${count(partition.lag)}`, where, partition.cause].filter(Boolean).join(" · ");
    tell(this.phase.lastChild, partition.phase);
    tell(this.small, partition.lag === null ? "–" : brief(partition.lag));
    facts(this.list, [
      ["lag", count(partition.lag)],
      ["records/s", brief(rates.at(-1))],
      ["position", count(partition.position)],
      ["keys", brief(partition.live?.commit_record.keys ?? partition.restore?.keys)],
    ]);
    this.bar.update(partition.restore);
    tell(this.cause, ["failed", "unassigned", "unknown"].includes(partition.phase) ? partition.cause ?? "" : "");
    tell(this.where, where);
    this.line.update(rates);
  }
}

export class Tiles {
  constructor() { this.made = new Map(); }

  update(partitions, rates) {
    const nodes = partitions.map((each) => {
      if (!this.made.has(each.partition)) this.made.set(each.partition, new Tile(each.partition));
      const tile = this.made.get(each.partition);
      tile.update(each, rates(each));
      return tile.node;
    });
    const list = by("tiles");
    list.classList.toggle("dense", partitions.length > DENSE);
    if (nodes.length !== list.children.length || nodes.some((node, at) => list.children[at] !== node)) {
      const focused = document.activeElement?.closest?.("#tiles > li");
      list.replaceChildren(...nodes);
      focused?.querySelector("a")?.focus();
    }
    this.#legend(partitions.map((each) => each.phase));
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

const sum = (list, pick) => list.reduce((before, each) => before + (pick(each) ?? 0), 0);

export function totals(data, partitions, rate) {
  const unknown = partitions.filter((each) => each.lag === null).length;
  const rows = [
    ["Partitions live", `${partitions.filter((each) => each.phase === "live").length}`, `of ${partitions.length}`],
    ["Records per second", brief(rate), ""],
    ["Lag", unknown < partitions.length ? brief(sum(partitions, (each) => each.lag)) : "–", unknown && unknown < partitions.length ? `records, ${unknown} unknown` : "records"],
    ["Keys of state", brief(sum(partitions, (each) => each.live?.commit_record.keys ?? each.restore?.keys)), bytes(sum(partitions, (each) => each.live?.bytes))],
  ];
  const hidden = sum(data.status.partitions, (each) => each.hidden);
  if (hidden > 0) rows.push(["Behind open transactions", brief(hidden), "records"]);
  const copies = data.status.standbys ?? [];
  const oldest = Math.max(0, ...copies.map((each) => each.age ?? 0));
  if (copies.length) rows.push(["Standby replicas here", `${copies.filter((each) => !each.loading).length}`, `of ${copies.length}, ${seconds(oldest)} old at most`]);
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

/** Charts of this instance's partitions together. */
export class InstanceCharts {
  constructor() {
    this.rate = new Chart("Records per second", "", "of this instance");
    this.lag = new Chart("Lag", "records", "of this instance");
    by("charts").replaceChildren(this.rate.node, this.lag.node);
  }

  update(times, seriesOf, numbers, span) {
    const all = numbers.map(seriesOf);
    const together = (name) => times.map((time, at) => {
      const known = all.map((each) => each[name][at]).filter((value) => value !== null);
      return [time, known.length ? known.reduce((before, value) => before + value, 0) : null];
    });
    this.rate.update(together("rate"), span);
    this.lag.update(together("lag"), span);
  }
}

export function instances(data) {
  const told = JSON.stringify([data.members, data.others.map((each) => each.trouble), data.status.url]);
  if (by("instances").dataset.told === told) return;
  by("instances").dataset.told = told;
  const rows = data.members.map((member) => {
    const mine = member.url !== "" && member.url === data.status.url;
    const name = member.url && !mine ? element("a", { href: `${member.url}/` }, member.url) : member.url || member.client;
    const held = member.partitions.length ? `partitions ${ranges([...member.partitions].sort((a, b) => a - b))}` : "idle";
    const trouble = data.others.find((each) => each.client === member.client && each.url === member.url)?.trouble;
    return element("li", {}, element("div", {}, name, mine ? " (this one)" : ""),
      element("div", { className: "quiet" }, `${held} · ${member.host}`),
      trouble ? element("div", { className: "cause" }, `no answer: ${trouble}`) : null);
  });
  by("instances").replaceChildren(...(rows.length ? rows : [element("li", { className: "quiet" }, "the group has not answered yet")]));
}

/** The group's verdict: [state, words, sentences that say why]. */
export function verdict(data, partitions) {
  const { status, live, ready } = data;
  const failed = partitions.filter((each) => each.phase === "failed");
  if (status.outage) return ["bad", "Kafka away", [`Kafka has not answered for ${seconds(status.outage.seconds)}: ${status.outage.cause}`]];
  if (failed.length) return ["bad", `${failed.length} failed`, failed.map((each) => `Partition ${each.partition}${each.here ? "" : ` at ${ownerOf(each)}`}: ${each.cause ?? "failed"}`)];
  if (!live[0]) return ["bad", "not live", live[1]];
  if (!ready[0]) return ["waiting", "not ready", ready[1]];
  const lost = partitions.filter((each) => each.phase === "unassigned"), silent = data.others.filter((each) => each.trouble);
  if (lost.length) return ["waiting", "not assigned", [`No instance owns ${lost.length === 1 ? "partition" : "partitions"} ${ranges(lost.map((each) => each.partition))}`]];
  const waiting = partitions.filter((each) => rank(each) === 2 || rank(each) === 3);
  if (waiting.length) return ["waiting", "not ready", waiting.map((each) => `Partition ${each.partition} at ${ownerOf(each)} is ${each.phase}`)];
  if (silent.length) return ["waiting", "partly unknown", silent.map((each) => `${each.client || each.host} does not answer: ${each.trouble}`)];
  return ["ready", status.partitions.length ? "ready" : "idle", []];
}
