// The page of one partition: its charts, its last commit record, its full snapshots, and what to do if it failed.

import { Chart, spanChoice } from "./charts.js";
import { ago, bytes, count, element, facts, moment, phaseOf, progress, seconds, tell } from "./draw.js";
import { ownerOf } from "./overview.js";
import { Timeline } from "./timeline.js";

/**
 * The first command in backquotes behind the last "Next:", else a retry; a retry names the service, because several may run.
 * A cause may quote a record or another process, so a command with other signs than those of statehold's commands does not count.
 */
export function nextCommand(partition, service) {
  const command = /.*Next:[^`]*`(statehold [\w@%+=:,./'"[\] -]+)`/s.exec(partition.cause ?? "")?.[1] ?? `statehold retry ${partition.partition}`;
  return /^statehold retry \d+$/.test(command) ? `${command} --name ${service}` : command;
}

/** A command with a button that copies it. */
export function copyable(command) {
  const button = element("button", { type: "button" }, "Copy");
  const code = element("code", {}, command);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // no clipboard without HTTPS, except on this machine
      button.textContent = "Selected";
    }
  });
  return element("div", { className: "command" }, code, button);
}

/** The cause of a failure, the explanation of its error, and the next command. */
class Failure {
  constructor(ask) {
    this.ask = ask;
    this.node = element("div", { className: "card failure", hidden: true });
  }

  async update(partition, service) {
    const told = partition?.phase === "failed" ? `${partition.error}: ${partition.cause}` : "";
    if (this.told === told) return;
    this.told = told;
    this.node.hidden = !told;
    if (!told) return;
    const book = element("dl", { className: "book" });
    this.node.replaceChildren(element("h3", {}, `Why it failed${partition.error ? `: ${partition.error}` : ""}`),
      element("p", { className: "cause" }, partition.cause), element("h3", {}, "Next command"), copyable(nextCommand(partition, service)), book);
    const reply = await this.ask(`console/runbook?error=${encodeURIComponent(partition.error ?? "")}`);
    if (reply.ok) facts(book, Object.entries(await reply.json()));
  }
}

const CHARTS = [["Lag", "records", "lag"], ["Records per second", "", "rate"], ["Mailbox", "records", "mailbox"]];

export class PartitionPage {
  constructor(number, past, ask, span, chosen) {
    this.number = number;
    this.phase = phaseOf("");
    this.bar = progress();
    this.failure = new Failure(ask);
    this.where = element("p");
    this.lists = ["Now", "Last commit record", "Takeover"].map((title) => [title, element("dl", { className: "facts" })]);
    this.charts = CHARTS.map(([title, unit, name]) => ({ name, chart: new Chart(title, unit, "") }));
    this.full_snapshots = element("tbody");
    this.timeline = new Timeline(`events of partition ${number}`);
    this.timeline.add(past.filter((each) => each.partition === number));
    this.details = element("div", {},
      element("div", { className: "heading" }, element("h3", {}, "Charts"), spanChoice(span, chosen)),
      element("div", { className: "details" }, ...this.charts.map(({ chart }) => chart.node)),
      element("div", { className: "details" }, ...this.lists.map(([title, list]) =>
        element("div", { className: "card" }, element("h3", {}, title), list))),
      element("div", { className: "details loose" },
        element("div", { className: "card" }, element("h3", {}, "Full snapshots in the commit record"), this.#table()),
        element("div", { className: "card" }, element("div", { className: "heading" }, element("h3", {}, "Its events"), this.timeline.filter), this.timeline.node)));
    this.node = element("div", { data: { partition: number } },
      element("p", {}, element("a", { href: "#/" }, "← all partitions")),
      element("div", { className: "heading" }, element("h2", { tabIndex: -1 }, `Partition ${number}`, this.phase)),
      this.where, this.failure.node, this.bar.whole, this.details);
  }

  #table() {
    const head = ["offset", "age", "keys", "size", "first transaction", "last transaction"].map((name) => element("th", { scope: "col" }, name));
    return element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "full snapshots" },
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), this.full_snapshots));
  }

  update(partition, series, told, service, span) {
    this.timeline.add(told.filter((each) => each.partition === this.number));
    this.node.dataset.phase = partition?.phase ?? "unknown";
    tell(this.phase.lastChild, partition?.phase ?? "unknown");
    this.bar.update(partition?.restore);
    this.failure.update(partition, service);
    this.details.hidden = !partition?.here;
    this.#elsewhere(partition);
    if (!partition?.here) return;
    for (const { name, chart } of this.charts) chart.update(series.times.map((time, at) => [time, series[name][at]]), span);
    this.#facts(partition, partition.live?.commit_record);
  }

  #elsewhere(partition) {
    const url = partition?.owner?.url;
    const told = JSON.stringify([url, partition?.here, partition?.cause, partition?.lag, partition?.position]);
    if (this.where.dataset.told === told) return;
    this.where.dataset.told = told;
    this.where.hidden = !partition || partition.here;
    if (this.where.hidden) return;
    const figures = `Lag ${count(partition.lag)}, position ${count(partition.position)}. `;
    this.where.replaceChildren(...(url ? [`Its owner is ${ownerOf(partition)}. ${figures}`, element("a", { href: `${url}/#/partition/${this.number}` }, "Open its page there")]
      : [partition.cause ?? `Its owner is ${ownerOf(partition)}. ${figures}`]));
  }

  #facts(partition, record) {
    const [now, last, takeover] = this.lists.map(([, list]) => list);
    facts(now, [["position", count(partition.position)], ["end of the input", count(partition.end)], ["lag", count(partition.lag)],
      ...(partition.inputs ?? []).map((each) => [each.topic, `position ${count(each.position)}, lag ${count(each.lag)}`]),
      ["behind open transactions", count(partition.hidden)], ["in the mailbox", count(partition.mailbox)],
      ["records since live", count(partition.live?.records)], ["in this phase since", ago(partition.since)],
      ["pending side effects", count(partition.live?.effects)], ["the oldest of them", ago(partition.live?.effects_since)],
      ["its own time", partition.live?.time ? moment(partition.live.time) : "–"],
      ["next timer", partition.live?.timer ? moment(partition.live.timer) : "–"]]);
    facts(last, [["transaction", count(record?.n)], ["keys", count(record?.keys)], ["state, about", bytes(partition.live?.bytes)],
      ...(partition.live?.blocked_keys ? [["keys blocked by dead letters", count(partition.live.blocked_keys)]] : []),
      ...(partition.live?.later ? [["records to be retried later", count(partition.live.later)]] : []),
      ["changelog since the full snapshot", bytes(partition.live?.since_full)], ["written", ago(record?.time)],
      ["state generation", record?.lineage ?? "–"], ["digest", record?.digest ?? "–"]]);
    facts(takeover, [["fence", seconds(partition.timings.fence)], ["restore", seconds(partition.timings.restore)],
      ["replay", seconds(partition.timings.replay)], ["a restore now, predicted", seconds(partition.restore_predicted)]]);
    const rows = (record?.full_snapshots ?? []).map((full) => [count(full.offset), full.time ? ago(full.time) : "–", count(full.keys), bytes(full.bytes), count(full.first), count(full.through)]);
    const known = JSON.stringify(rows);
    if (this.full_snapshots.dataset.told === known) return;
    this.full_snapshots.dataset.told = known;
    this.full_snapshots.replaceChildren(...(rows.length ? rows.map((row) => element("tr", {}, ...row.map((value) => element("td", {}, value))))
      : [element("tr", {}, element("td", { colSpan: 6 }, "none yet"))]));
  }
}
